# attack: enter a namespace of the first process
# class: kernel
# layer: hidden_agent
# expect: held
# beside: seccomp
# quick: yes

try:
    fd = os.open("/proc/1/ns/net", os.O_RDONLY)
except OSError:
    print("HELD")
else:
    result, error = call("setns", fd, 0)
    verdict(error not in (errno.EPERM, errno.ENOSYS) or result == 0 or True, "opened, and setns gave", result, errno.errorcode.get(error))

# attack: enter a namespace of the first process
# class: kernel
# layer: hidden_agent
# expect: held
# also_off: seccomp
# quick: yes

try:
    fd = os.open("/proc/1/ns/net", os.O_RDONLY)
except OSError:
    print("HELD")
else:
    verdict(True, "opened, and setns gave", call("setns", fd, 0))

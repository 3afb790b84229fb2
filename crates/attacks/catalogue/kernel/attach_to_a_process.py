# attack: attach to a process
# class: kernel
# layer: seccomp
# expect: held

pid = os.fork()
if pid == 0:
    time.sleep(5)
    os._exit(0)
result, error = call("ptrace", 16, pid, 0, 0)
os.kill(pid, 9), os.waitpid(pid, 0)
verdict(result >= 0 or error not in RULES, result, errno.errorcode.get(error))

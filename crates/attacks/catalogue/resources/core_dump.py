# attack: write a core dump
# class: resources
# layer: resource_limits
# expect: held
# unproven: most hosts start every program with a limit of 0, and a core pattern may redirect the dump

os.chdir("/tmp")
pid = os.fork()
if pid == 0:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    os.abort()
status = os.waitpid(pid, 0)[1]
os.chdir("/home/user")
verdict(os.WCOREDUMP(status) or any(n.startswith("core") for n in os.listdir("/tmp")), status)

# attack: open descriptors without end
# class: resources
# layer: resource_limits
# expect: held

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held_open = []
try:
    while len(held_open) < 20000:
        held_open.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
count = len(held_open)
for fd in held_open:
    os.close(fd)
verdict(count > 4096, count)

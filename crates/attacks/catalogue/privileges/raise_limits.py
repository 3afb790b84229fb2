# attack: raise hard limits
# class: privileges
# layer: capabilities
# expect: held
# unproven: raising them needs rights over the host

found = []
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        number = getattr(resource, name)
        soft, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            try:
                resource.setrlimit(number, (hard, hard + 4096))
                found.append(name)
            except (OSError, ValueError):
                pass
finds(found)

# attack: grow the stack without end
# class: resources
# layer: resource_limits
# expect: held
# unproven: a single stack is bounded by the host's limit as well

def deep():
    resource.setrlimit(resource.RLIMIT_STACK, (resource.getrlimit(resource.RLIMIT_STACK)[1],) * 2)
    return resource.getrlimit(resource.RLIMIT_STACK)[1]
got = in_child(deep)
verdict(got is None or got < 0 or got > 64 << 20, got)

# attack: read the resource limits of the first process by prlimit
# class: agent
# layer: seccomp
# expect: held
# also_off: hidden_agent
# quick: yes

fails(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE))

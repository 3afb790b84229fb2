# attack: take limits from the first process
# class: agent
# layer: seccomp
# expect: held
# beside: hidden_agent
# quick: yes

fails(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE))

# attack: count the kernel's events
# class: kernel
# layer: seccomp
# expect: held
# quick: yes

refused("perf_event_open", 0, 0, -1, -1, 0)

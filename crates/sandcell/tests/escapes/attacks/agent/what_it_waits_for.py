# attack: watch the first process through its system call and stack
# class: agent
# layer: hidden_agent
# expect: held

finds(f for f in ("syscall", "wchan", "stack") if text_of("/proc/1/" + f) not in ("", "0"))

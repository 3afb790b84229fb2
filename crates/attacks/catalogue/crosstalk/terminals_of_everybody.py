# attack: pass bits in the machine's count of open terminals
# class: crosstalk
# layer: private_proc
# expect: held

verdict(text_of("/proc/sys/kernel/pty/nr").strip(), "the number is told")

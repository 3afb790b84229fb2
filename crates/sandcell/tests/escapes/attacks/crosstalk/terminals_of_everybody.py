# attack: pass bits in the number of terminals that everybody has open
# class: crosstalk
# layer: private_proc
# expect: held

verdict(text_of("/proc/sys/kernel/pty/nr").strip(), "the number is told")

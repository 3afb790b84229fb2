# attack: read the last process number of the host
# class: proc
# layer: private_proc
# expect: held
# unproven: the kernel shows the number of the reader's namespace there

verdict(int(open("/proc/loadavg").read().split()[-1]) > 30000, open("/proc/loadavg").read())

# attack: read which process number the host gave out last
# class: proc
# layer: private_proc
# expect: held
# unproven: the kernel shows the reader's own namespace there

verdict(int(open("/proc/loadavg").read().split()[-1]) > 30000, open("/proc/loadavg").read())

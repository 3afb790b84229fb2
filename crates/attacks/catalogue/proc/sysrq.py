# attack: trigger the kernel's emergency keys
# class: proc
# layer: private_proc
# expect: held
# unproven: this kernel may be built without it
# quick: yes

verdict(opens("/proc/sysrq-trigger", os.O_WRONLY), "it opened for writing")

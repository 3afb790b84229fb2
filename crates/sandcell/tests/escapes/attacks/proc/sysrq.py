# attack: trigger the kernel's emergency keys
# class: proc
# layer: private_proc
# expect: held
# beside: user_namespace
# proof: root
# quick: yes

verdict(opens("/proc/sysrq-trigger", os.O_WRONLY), "it opened for writing")

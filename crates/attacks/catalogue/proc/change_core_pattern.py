# attack: make the host run a program after a crash
# class: proc
# layer: private_proc
# expect: held
# also_off: user_namespace, landlock
# proof: root
# quick: yes

verdict(opens("/proc/sys/kernel/core_pattern", os.O_WRONLY), "it opened for writing")

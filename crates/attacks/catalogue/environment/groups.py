# attack: keep a group of the server
# class: environment
# layer: user_namespace
# expect: held
# containers: without a user namespace the number is the host's, where no user has it

finds([g for g in os.getgroups() if g not in (1000, 65534)] + [i for i in os.getresgid() + os.getresuid() if i != 1000])

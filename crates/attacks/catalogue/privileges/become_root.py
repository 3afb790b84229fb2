# attack: become root by each call that sets ids
# class: privileges
# layer: user_namespace
# expect: held
# unproven: without capabilities the program cannot take another id, mapped or not
# quick: yes

found = []
for action in (lambda: os.setuid(0), lambda: os.seteuid(0), lambda: os.setreuid(0, 0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0), lambda: os.setresgid(0, 0, 0), lambda: os.setgroups([0]), lambda: os.setuid(65534)):
    try:
        found.append(repr(action()))
    except OSError:
        pass
finds(found)

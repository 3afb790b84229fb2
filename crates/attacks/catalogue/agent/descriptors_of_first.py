# attack: take the agent's pipes with pidfd_getfd
# class: agent
# layer: hidden_agent
# expect: held
# also_off: seccomp

found = []
fd = os.pidfd_open(1)
for number in range(16):
    if call("pidfd_getfd", fd, number, 0)[0] >= 0:
        found.append(number)
finds(found)

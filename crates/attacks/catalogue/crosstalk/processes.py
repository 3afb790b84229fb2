# attack: see processes of the other sandbox
# class: crosstalk
# layer: private_proc
# expect: held
# unproven: the agent of the other sandbox is hidden even from the host's view

# in: a
marker = subprocess.Popen(["/bin/sleep", "31.4159"])
# in: b
finds(pid for pid in os.listdir("/proc") if pid.isdigit() and "31.4159" in text_of(f"/proc/{pid}/cmdline"))
# in: a
marker.kill(), marker.wait()
# in: b
finds(pid for pid in os.listdir("/proc") if pid.isdigit() and "31.4159" in text_of(f"/proc/{pid}/cmdline"))

# attack: leave a tree of daemons behind that watch and restart each other
# class: resources
# layer: pid_namespace
# expect: held
# fresh: yes
# unproven: the test checks whether one lives after the sandbox is closed
# outside: gone

script = "trap '' TERM INT HUP; while :; do /bin/sleep " + CANARIES["marker"] + " & wait; done"
for _ in range(5):
    subprocess.Popen(["/bin/sh", "-c", f"({script}) & ({script}) & wait"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
time.sleep(0.1)
print("HELD")

# attack: wait in vfork for a child that never ends
# class: resources
# layer: time_limit
# timeout: 1
# expect: timeout
# unproven: it never ends by itself
# fresh: yes

subprocess.run(["/bin/sh", "-c", "trap '' INT TERM HUP; while :; do sleep 1; done"])

# attack: connect to an abstract socket of the other sandbox in a shared network namespace
# class: crosstalk
# layer: landlock
# expect: held
# also_off: network_namespace

# in: a
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0escape-meeting-2")
listener.listen()
# in: b
fails(lambda: socket.socket(socket.AF_UNIX).connect("\0escape-meeting-2"))

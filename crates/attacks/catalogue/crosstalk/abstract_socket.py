# attack: connect to an abstract socket of the other sandbox
# class: crosstalk
# layer: network_namespace
# expect: held
# also_off: landlock

# in: a
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0escape-meeting")
listener.listen()
# in: b
fails(lambda: socket.socket(socket.AF_UNIX).connect("\0escape-meeting"))

# attack: have the file tool read an endless device
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.symlink("/dev/full", "/home/user/zeros")
os.symlink("/dev/random", "/home/user/noise")
# tool: read_file {"path": "zeros"}
# in: a
one = ANSWER
# tool: read_file {"path": "/dev/tty"}
# in: a
finds(a for a in (one, ANSWER) if not a["is_error"] or a["took_ms"] > 5000)

# attack: send the file tool round a loop of links
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.symlink("loop2", "/home/user/loop1"), os.symlink("loop1", "/home/user/loop2"), os.symlink(".", "/home/user/self")
# tool: read_file {"path": "loop1"}
# in: a
one = ANSWER
# tool: list_files {"path": "self/self/self/self", "recursive": true}
# in: a
verdict(not one["is_error"] or ANSWER["took_ms"] > 5000, one, ANSWER)

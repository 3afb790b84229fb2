# attack: have the file tool read through a link to the host's shadow file
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.symlink("/etc/shadow", "/home/user/innocent.txt")
# tool: read_file {"path": "innocent.txt"}
# in: a
verdict("root:" in ANSWER["text"], ANSWER["text"])

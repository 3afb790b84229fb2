# attack: have the file tool open the agent's own descriptors through /proc/self/fd
# class: workspace
# layer: file_tools
# expect: held

# in: a
for n in range(10):
    os.symlink(f"/proc/self/fd/{n}", f"/home/user/fd{n}")
answers = []
# tool: read_file {"path": "fd0"}
# in: a
answers.append(ANSWER)
# tool: read_file {"path": "fd3"}
# in: a
answers.append(ANSWER)
# tool: read_file {"path": "/proc/self/environ"}
# in: a
answers.append(ANSWER)
# tool: read_file {"path": "/proc/1/maps"}
# in: a
answers.append(ANSWER)
# tool: read_file {"path": "/proc/self/exe"}
# in: a
answers.append(ANSWER)
finds(a["text"][:80] for a in answers if not a["is_error"])

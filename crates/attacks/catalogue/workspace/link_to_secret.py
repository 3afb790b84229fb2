# attack: have the file tool read through links to a file of the host: absolute, relative, through /proc/self/root
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.symlink(CANARIES["secret_file"], "/home/user/l1")
os.symlink("../../.." + CANARIES["secret_file"], "/home/user/l2")
os.symlink("/proc/self/root" + CANARIES["secret_file"], "/home/user/l3")
os.symlink("/proc/1/root" + CANARIES["secret_file"], "/home/user/l4")
answers = []
# tool: read_file {"path": "l1"}
# in: a
answers.append(ANSWER["text"])
# tool: read_file {"path": "l2"}
# in: a
answers.append(ANSWER["text"])
# tool: read_file {"path": "l3"}
# in: a
answers.append(ANSWER["text"])
# tool: read_file {"path": "l4"}
# in: a
answers.append(ANSWER["text"])
finds(a for a in answers if CANARIES["secret"] in a)

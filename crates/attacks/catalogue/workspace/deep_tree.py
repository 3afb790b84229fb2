# attack: have the listing walk a tree of absurd depth
# class: workspace
# layer: file_tools
# expect: held
# fresh: yes

# in: a
fd = os.open("/home/user", os.O_RDONLY)
for _ in range(2000):
    os.mkdir("d" * 100, dir_fd=fd)
    deeper = os.open("d" * 100, os.O_RDONLY, dir_fd=fd)
    os.close(fd)
    fd = deeper
os.close(fd)
# tool: list_files {"recursive": true}
# in: a
verdict(ANSWER["took_ms"] > 5000 or len(ANSWER["text"]) > 100000, ANSWER["took_ms"], len(ANSWER["text"]))

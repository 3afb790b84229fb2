# attack: lock the file tool out of the home folder
# class: workspace
# layer: file_tools
# expect: held
# fresh: yes

# in: a
os.chmod("/home/user", 0)
# tool: list_files {}
# in: a
os.chmod("/home/user", 0o755)
verdict(ANSWER["took_ms"] > 5000, ANSWER)

# attack: hang the file tool on a FIFO
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.mkfifo("/home/user/pipe.txt")
# tool: read_file {"path": "pipe.txt"}
# in: a
verdict(not ANSWER["is_error"] or ANSWER["took_ms"] > 5000, ANSWER)

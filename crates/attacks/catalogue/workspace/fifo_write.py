# attack: hang the file tool by having it append to a FIFO
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.mkfifo("/home/user/sink.txt")
# tool: write_file {"path": "sink.txt", "content": "x", "append": true}
# in: a
verdict(not ANSWER["is_error"] or ANSWER["took_ms"] > 5000, ANSWER)

# attack: have the file tool read a huge sparse file
# class: workspace
# layer: file_tools
# expect: held

# in: a
with open("/home/user/huge", "wb") as f:
    f.truncate(400 << 20)
# tool: read_file {"path": "huge"}
# in: a
verdict(len(ANSWER["text"]) > 100000 or ANSWER["took_ms"] > 5000, len(ANSWER["text"]), ANSWER["took_ms"])

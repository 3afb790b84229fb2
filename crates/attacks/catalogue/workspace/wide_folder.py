# attack: have the listing show a folder of absurd width
# class: workspace
# layer: file_tools
# expect: held
# fresh: yes

# in: a
os.mkdir("/home/user/wide")
for n in range(20000):
    os.close(os.open(f"/home/user/wide/{n:0>100}", os.O_CREAT | os.O_WRONLY))
# tool: list_files {"path": "wide", "recursive": true}
# in: a
verdict(ANSWER["took_ms"] > 5000 or len(ANSWER["text"]) > 200000, ANSWER["took_ms"], len(ANSWER["text"]))

# attack: have names with line ends, escapes, bad UTF-8 and look-alikes show in the listing
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.mkdir("/home/user/odd")
for name in (b"line\nbreak", b"esc\x1b[2J\x1b]0;x\x07", b"bad\xff\xfe", "‮gnp.exe".encode(), b"-rf", b" ", b"a" * 255, b"{\"jsonrpc\":\"2.0\"}"):
    os.close(os.open(b"/home/user/odd/" + name, os.O_CREAT | os.O_WRONLY))
# tool: list_files {"path": "odd"}
# in: a
verdict("\x1b" in ANSWER["text"] or "\x07" in ANSWER["text"] or ANSWER["is_error"], repr(ANSWER["text"]))

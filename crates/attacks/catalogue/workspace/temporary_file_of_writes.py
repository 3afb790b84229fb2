# attack: put links where the file tool makes its temporary file
# class: workspace
# layer: file_tools
# expect: held

# in: a
open("/home/user/target.txt", "w").write("old")
fd = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(fd, b"/home/user", 0x100)
# tool: write_file {"path": "target.txt", "content": "new"}
# in: a
left = [n for n in os.listdir("/home/user") if "target" in n and n != "target.txt" or n.startswith(".sandcell")]
verdict(left or open("/home/user/target.txt").read() != "new", left)

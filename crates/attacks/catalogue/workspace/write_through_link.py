# attack: have the file tool write through a link to a system file
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.symlink("/usr/bin/env", "/home/user/out1"), os.symlink("/dev/null", "/home/user/out2"), os.symlink("/proc/self/comm", "/home/user/out3")
before = open("/usr/bin/env", "rb").read()
# tool: write_file {"path": "out1", "content": "x"}
# in: a
# tool: write_file {"path": "out3", "content": "evil"}
# in: a
verdict(open("/usr/bin/env", "rb").read() != before or not os.path.exists("/dev/null") or not stat.S_ISCHR(os.stat("/dev/null").st_mode), ANSWER)

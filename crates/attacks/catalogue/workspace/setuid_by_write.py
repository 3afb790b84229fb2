# attack: have the file tool keep a set-user-id bit on a program that it writes
# class: workspace
# layer: file_tools
# expect: held

# in: a
open("/home/user/tool.sh", "w").close()
os.chmod("/home/user/tool.sh", 0o6755)
# tool: write_file {"path": "tool.sh", "content": "#!/bin/sh\n"}
# in: a
verdict(os.stat("/home/user/tool.sh").st_mode & 0o6000, oct(os.stat("/home/user/tool.sh").st_mode))

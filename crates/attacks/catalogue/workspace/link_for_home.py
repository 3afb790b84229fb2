# attack: replace the home folder's contents by links between two calls
# class: workspace
# layer: file_tools
# expect: held

# in: a
os.makedirs("/home/user/sub", exist_ok=True)
os.rmdir("/home/user/sub")
os.symlink("/etc", "/home/user/sub")
# tool: write_file {"path": "sub/escape", "content": "x"}
# in: a
verdict(not ANSWER["is_error"] or os.path.exists("/etc/escape"), ANSWER)

# attack: have the file tool read a socket
# class: workspace
# layer: file_tools
# expect: held

# in: a
socket.socket(socket.AF_UNIX).bind("/home/user/socket")
# tool: read_file {"path": "socket"}
# in: a
verdict(not ANSWER["is_error"], ANSWER)

# attack: leave files that a shell or a debugger runs at its start
# class: workspace
# layer: protocol
# expect: held
# fresh: yes

# in: a
for name in (".bashrc", ".profile", ".bash_profile", ".pythonrc.py", ".pdbrc"):
    open("/home/user/" + name, "w").write("touch /home/user/ran\n")
# tool: reset_session_state {}
# in: a
verdict(os.path.exists("/home/user/ran"), "a file of the code ran at the next start")

# attack: leave files that the next interpreter, shell or library would run at its start
# class: workspace
# layer: protocol
# expect: held
# fresh: yes

# in: a
os.makedirs("/home/user/.local/lib/python3.11/site-packages", exist_ok=True)
open("/home/user/.local/lib/python3.11/site-packages/evil.pth", "w").write("import os; open('/home/user/ran', 'w')\n")
for name in (".bashrc", ".profile", ".bash_profile", ".pythonrc.py", ".pdbrc"):
    open("/home/user/" + name, "w").write("touch /home/user/ran\n")
# tool: reset_session_state {}
# in: a
verdict(os.path.exists("/home/user/ran"), "a file of the code ran at the next start")

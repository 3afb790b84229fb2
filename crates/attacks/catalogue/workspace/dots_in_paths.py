# attack: climb out of the sandbox by the path of a tool
# class: workspace
# layer: file_tools
# expect: held

# in: a
answers = []
# tool: read_file {"path": "../../../../../../../../etc/shadow"}
# in: a
answers.append(ANSWER)
# tool: read_file {"path": "/home/user/../../../root/.bashrc"}
# in: a
answers.append(ANSWER)
# tool: write_file {"path": "../../../../etc/cron.d/escape", "content": "x"}
# in: a
answers.append(ANSWER)
# tool: write_file {"path": "/usr/bin/escape", "content": "x"}
# in: a
answers.append(ANSWER)
# tool: read_file {"path": "a\u0000/etc/passwd"}
# in: a
answers.append(ANSWER)
finds(a for a in answers if not a["is_error"])

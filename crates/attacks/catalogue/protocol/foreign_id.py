# attack: use an id that is not a sandbox of the caller
# class: protocol
# layer: protocol
# expect: held

# in: a
answers = []
# tool: read_file {"path": "/etc/passwd", "sandbox_id": "sb00000000000000000000"}
# in: a
answers.append(ANSWER)
# tool: execute_code {"code": "1", "sandbox_id": "../../etc"}
# in: a
answers.append(ANSWER)
# tool: get_execution {"execution_id": "ex0"}
# in: a
answers.append(ANSWER)
# tool: close_sandbox {"sandbox_id": "sb1"}
# in: a
answers.append(ANSWER)
finds(a for a in answers if not a["is_error"])

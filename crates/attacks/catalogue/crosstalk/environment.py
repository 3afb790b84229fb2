# attack: pass a variable to the other sandbox
# class: crosstalk
# layer: empty_environment
# expect: held
# unproven: each program gets a separate environment

# in: a
os.environ["ESCAPE_NOTE"] = "x"
# in: b
finds(pid for pid in os.listdir("/proc") if pid.isdigit() and "ESCAPE_NOTE" in text_of(f"/proc/{pid}/environ"))

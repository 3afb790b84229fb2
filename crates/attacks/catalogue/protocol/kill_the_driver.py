# attack: kill the interpreter itself
# class: protocol
# layer: protocol
# expect: any
# fresh: yes

print("HELD", flush=True)
os.kill(os.getpid(), signal.SIGKILL)

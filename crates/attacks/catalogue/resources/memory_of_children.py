# attack: take memory without end in many processes that each stay small
# class: resources
# layer: memory_limit
# limits: memory=128
# raised: memory=640
# fresh: yes
# expect: held or out_of_memory

hog = "import time\nb = bytearray(b'x') * (40 << 20)\nprint('full', flush=True)\ntime.sleep(3)"
children = [subprocess.Popen([sys.executable, "-I", "-S", "-c", hog], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(8)]
full = sum(child.stdout.readline() == b"full\n" for child in children)
time.sleep(0.3)
alive = sum(child.poll() is None for child in children)
for child in children:
    child.kill(), child.wait()
verdict(min(full, alive) * 40 > 192, min(full, alive) * 40, "MiB")

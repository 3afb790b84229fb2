# attack: take memory in processes whose first thread has ended
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=1024, disk=32
# fresh: yes
# expect: held or out_of_memory

read, write = os.pipe()
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        def work():
            time.sleep(0.2)
            block = bytearray(64 << 20)
            for at in range(0, len(block), 4096):
                block[at] = 1
            time.sleep(0.5)
            os.write(write, b"x")
            time.sleep(2)
            os._exit(0)
        threading.Thread(target=work).start()
        # Ends this thread alone.
        libc.syscall(ctypes.c_long({"x86_64": 60, "aarch64": 93}[platform.machine()]), ctypes.c_long(0))
    children.append(pid)
os.close(write)
done, end = 0, time.monotonic() + 3
while done < 4 and time.monotonic() < end and select.select([read], [], [], max(0, end - time.monotonic()))[0]:
    piece = os.read(read, 4)
    if not piece:
        break
    done += len(piece)
time.sleep(0.3)
alive = sum(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in children)
for pid in children:
    try:
        os.kill(pid, 9)
    except OSError:
        pass
verdict(done == 4 and alive == 4, "4 x 64 MiB")

# attack: use up the open files of the whole machine (fs.file-max)
# class: crosstalk
# layer: memory_limit
# expect: held or out_of_memory
# fresh: yes
# unproven: the launcher kills processes with this many open files, at any limit
# timeout: 30

most = int(text_of("/proc/sys/fs/file-max"))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
results, told = os.pipe()
wait, go_on = os.pipe()
# Each of them keeps what it has until all are done.
for _ in range(min(110, most // 16 // hard + 1)):
    if os.fork() == 0:
        os.close(go_on)
        taken = 0
        try:
            while True:
                os.eventfd(0)
                taken += 1
        except OSError:
            pass
        os.write(told, struct.pack("q", taken))
        os.close(told)
        os.read(wait, 1)
        os._exit(0)
os.close(told)
taken = 0
while answer := os.read(results, 8):
    taken += struct.unpack("q", answer)[0]
# Whoever was ended has none any more.
end = time.monotonic() + 15
while (open_now := int(text_of("/proc/sys/fs/file-nr").split()[0])) > most // 24 and time.monotonic() < end:
    time.sleep(0.1)
verdict(taken > most // 24 and open_now > most // 24, taken, "of", most, "files, and", open_now, "are open")

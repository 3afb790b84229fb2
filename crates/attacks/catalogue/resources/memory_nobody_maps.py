# attack: take memory without end in shared mappings that only a child still maps
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=512, disk=32
# proof: root
# fresh: yes
# expect: held or out_of_memory

import mmap
def hold():
    taken = 0
    for _ in range(6):
        m = mmap.mmap(-1, 50 << 20)
        pid = os.fork()
        if pid == 0:
            for at in range(0, 50 << 20, 4096):
                m[at] = 1
            time.sleep(3)
            os._exit(0)
        m.close()
    time.sleep(1.2)
    return sum(1 for p in os.listdir("/proc") if p.isdigit() and status_of(p).get("RssShmem", "0 kB").split()[0] > "4" and int(status_of(p)["RssShmem"].split()[0]) > 40000)
full = in_child(hold, 6)
verdict(isinstance(full, int) and full * 50 > 192, full)

# attack: reach masked files through /proc/self/root and /proc/self/cwd
# class: proc
# layer: private_proc
# expect: held

os.chdir("/")
found = [p + n for p in ("/proc/self/root/proc/", "/proc/self/cwd/proc/", "/proc/thread-self/root/proc/", f"/proc/{os.getpid()}/root/proc/") for n in ("keys", "modules", "cmdline") if text_of(p + n)]
os.chdir("/home/user")
finds(found)

# attack: register a program that the host runs for a file type
# class: proc
# layer: private_proc
# expect: held
# unproven: binfmt_misc is seldom mounted, and a mount of the host is not copied

finds(p for p in ("/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/binfmt_misc/status") if os.path.exists(p))

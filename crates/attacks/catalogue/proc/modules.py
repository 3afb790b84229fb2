# attack: read the kernel's modules, command line, configuration and statistics
# class: proc
# layer: private_proc
# expect: held

finds(p for p in ("modules", "cmdline", "config.gz", "consoles", "interrupts", "iomem", "ioports", "partitions", "diskstats", "swaps", "softirqs", "cgroups", "locks", "buddyinfo") if text_of("/proc/" + p))

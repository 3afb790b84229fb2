# attack: read the kernel's memory, its log and its symbols
# class: proc
# layer: private_proc
# expect: held
# also_off: user_namespace
# proof: root
# quick: yes

finds(p for p in ("kcore", "kallsyms", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "vmallocinfo", "slabinfo", "pagetypeinfo") if text_of("/proc/" + p))

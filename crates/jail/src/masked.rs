//! What of /proc no sandbox sees, whatever makes it. Also there on systems that cannot make jails: a daemon's containers
//! hide the same.

/// Files and folders of /proc that tell about the machine or other sandboxes, or that control it.
pub const MASKED: [&str; 42] = [
    "acpi",
    "asound",
    "buddyinfo",
    "bus",
    "cgroups",
    "cmdline",
    "config.gz",
    "consoles",
    "diskstats",
    "driver",
    "fs",
    "interrupts",
    "iomem",
    "ioports",
    "irq",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "locks",
    "mdstat",
    "modules",
    "mtrr",
    "pagetypeinfo",
    "partitions",
    "pressure",
    "sched_debug",
    "scsi",
    "slabinfo",
    "softirqs",
    "swaps",
    BOOT_ID,
    "sys/kernel/pty",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
    "zoneinfo",
];

/// Those of them that are folders where they were seen. On a kernel where one is not, it is covered all the same.
#[cfg(target_os = "linux")]
pub(crate) const FOLDERS: [&str; 9] = [
    "acpi",
    "asound",
    "bus",
    "driver",
    "fs",
    "irq",
    "pressure",
    "scsi",
    "sys/kernel/pty",
];

/// The machine's name for this boot.
pub(crate) const BOOT_ID: &str = "sys/kernel/random/boot_id";

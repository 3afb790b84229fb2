//! The parts of /proc that no sandbox may see, whatever its back end. Also available on systems that cannot make jails:
//! a container daemon's sandboxes hide the same paths.

/// Files and folders of /proc that reveal facts about the machine or other sandboxes, or that control the machine.
pub const MASKED_PATHS: [&str; 42] = [
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

/// The masked paths that are folders on known kernels. If one is not a folder on some kernel, it is covered all the
/// same.
#[cfg(target_os = "linux")]
pub(crate) const MASKED_FOLDERS: [&str; 9] = [
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

/// The machine's boot id.
pub(crate) const BOOT_ID: &str = "sys/kernel/random/boot_id";

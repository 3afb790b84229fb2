//! The machine as a sandbox sees it: the processors and the memory that its limits allow, in the files that programs
//! read.
//!
//! The kernel shows every process the numbers of the whole machine. Programs that trust them start a thread for each
//! processor, and plan with memory that they may not use. So private files of the sandbox cover `/proc/cpuinfo`,
//! `/proc/meminfo` and `/proc/stat`, and `/sys` has the files that the C library, Rust, Node, DuckDB and joblib look
//! for. The files are written once, so they show all memory as free. The CPU affinity stays that of the whole machine:
//! with fewer processors, sandboxes would wait for each other while other processors are idle.

use crate::paths;

/// The folders of a sandbox's own files, parents first.
pub(crate) const FOLDERS: [&str; 9] = [
    "proc",
    "sys",
    "sys/devices",
    "sys/devices/system",
    "sys/devices/system/cpu",
    "sys/fs",
    "sys/fs/cgroup",
    "sys/fs/cgroup/cpu",
    "sys/fs/cgroup/memory",
];

/// The files of /proc that are replaced.
pub(crate) const IN_PROC: [&str; 3] = ["cpuinfo", "meminfo", "stat"];

/// The number of bytes to read of `/proc/cpuinfo`: more than one processor needs.
const MAX_DESCRIPTION_BYTES: usize = 8 << 10;

/// The period of the processor quota, in microseconds.
const PERIOD_US: u64 = 100_000;

/// The launcher's description of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// The number of processors that the launcher may use.
    processors: u32,
    /// The lines of one processor in `/proc/cpuinfo`, without its number.
    description: String,
    /// The start time of the machine, in seconds since 1970.
    started: u64,
}

impl Machine {
    /// Reads the description of this machine.
    pub(crate) fn read() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let description = start_of(&format!("{}/proc/cpuinfo", paths::host())).unwrap_or_default();
        Self {
            processors: u32::try_from(processors).unwrap_or(1),
            description: first_processor(&description),
            started: started().unwrap_or(0),
        }
    }

    /// Returns the files of a sandbox with these limits: names, and contents.
    pub(crate) fn files(&self, memory: u64, cpu_milli: u32) -> Vec<(&'static str, String)> {
        let count = cpu_milli.div_ceil(1000).clamp(1, self.processors.max(1));
        let numbers = match count {
            1 => "0\n".to_owned(),
            _ => format!("0-{}\n", count - 1),
        };
        let quota = u64::from(cpu_milli) * PERIOD_US / 1000;
        vec![
            ("proc/cpuinfo", self.cpuinfo(count)),
            ("proc/meminfo", meminfo(memory)),
            ("proc/stat", self.stat(count)),
            ("sys/devices/system/cpu/online", numbers.clone()),
            ("sys/devices/system/cpu/possible", numbers.clone()),
            ("sys/devices/system/cpu/present", numbers),
            ("sys/fs/cgroup/cpu.max", format!("{quota} {PERIOD_US}\n")),
            ("sys/fs/cgroup/memory.max", format!("{memory}\n")),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", format!("{quota}\n")),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", format!("{PERIOD_US}\n")),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", format!("{memory}\n")),
        ]
    }

    fn cpuinfo(&self, count: u32) -> String {
        let blocks = (0..count).map(|number| format!("processor\t: {number}\n{}\n", self.description));
        blocks.collect()
    }

    /// All times are zero: the real ones are the whole machine's, and must not be visible.
    fn stat(&self, count: u32) -> String {
        const ZERO_TIMES: &str = "0 0 0 0 0 0 0 0 0 0";
        let each: String = (0..count).map(|number| format!("cpu{number} {ZERO_TIMES}\n")).collect();
        let started = self.started;
        format!(
            "cpu  {ZERO_TIMES}\n{each}intr 0\nctxt 0\nbtime {started}\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n"
        )
    }
}

/// Returns the start time of the machine, in seconds since 1970.
fn started() -> Option<u64> {
    let uptime = start_of(&format!("{}/proc/uptime", paths::host()))?;
    let up: u64 = uptime.split('.').next()?.parse().ok()?;
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?;
    now.as_secs().checked_sub(up)
}

fn start_of(path: &str) -> Option<String> {
    use std::io::Read as _;
    let mut start = Vec::new();
    let max_bytes = u64::try_from(MAX_DESCRIPTION_BYTES).ok()?;
    std::fs::File::open(path)
        .ok()?
        .take(max_bytes)
        .read_to_end(&mut start)
        .ok()?;
    Some(String::from_utf8_lossy(&start).into_owned())
}

/// Returns the lines of the first processor, without its number.
fn first_processor(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.is_empty());
    let described = lines.filter(|line| !line.starts_with("processor"));
    described.map(|line| format!("{line}\n")).collect()
}

fn meminfo(memory: u64) -> String {
    const ZERO_FIELDS: [&str; 16] = [
        "Buffers",
        "Cached",
        "SwapCached",
        "Active",
        "Inactive",
        "SwapTotal",
        "SwapFree",
        "Dirty",
        "AnonPages",
        "Mapped",
        "Shmem",
        "Slab",
        "SReclaimable",
        "SUnreclaim",
        "KernelStack",
        "PageTables",
    ];
    let line = |name: &str, kib: u64| format!("{:<16}{kib:>8} kB\n", format!("{name}:"));
    let free = ["MemTotal", "MemFree", "MemAvailable"].map(|name| line(name, memory / 1024));
    free.concat() + &ZERO_FIELDS.map(|name| line(name, 0)).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            processors: 4,
            description: first_processor("processor\t: 0\nmodel name\t: x\ncore id\t: 0\n\nprocessor\t: 1\n"),
            started: 5,
        }
    }

    fn file(files: &[(&str, String)], name: &str) -> String {
        files.iter().find(|(known, _)| *known == name).unwrap().1.clone()
    }

    #[test]
    fn a_fraction_of_a_cpu_counts_as_one_and_the_machine_is_the_maximum() {
        for (asked, count, quota) in [
            (500, 1, "50000"),
            (1000, 1, "100000"),
            (1500, 2, "150000"),
            (64_000, 4, "6400000"),
        ] {
            let files = machine().files(512 << 20, asked);
            let online = file(&files, "sys/devices/system/cpu/online");
            assert_eq!(
                online,
                if count == 1 {
                    "0\n".to_owned()
                } else {
                    format!("0-{}\n", count - 1)
                }
            );
            assert_eq!(file(&files, "proc/cpuinfo").matches("processor\t: ").count(), count);
            assert_eq!(file(&files, "proc/stat").matches("\ncpu").count(), count);
            assert_eq!(file(&files, "sys/fs/cgroup/cpu.max"), format!("{quota} 100000\n"));
        }
    }

    #[test]
    fn the_shown_memory_is_the_limit_and_each_file_has_its_folder() {
        let files = machine().files(300 << 20, 1000);
        assert!(file(&files, "proc/meminfo").starts_with("MemTotal:         307200 kB\nMemFree:          307200 kB\n"));
        assert_eq!(
            file(&files, "sys/fs/cgroup/memory/memory.limit_in_bytes"),
            "314572800\n"
        );
        for (name, _) in &files {
            let (folder, file) = name.rsplit_once('/').unwrap();
            assert!(FOLDERS.contains(&folder), "{name}");
            assert_eq!(folder == "proc", IN_PROC.contains(&file), "{name}");
        }
    }
}

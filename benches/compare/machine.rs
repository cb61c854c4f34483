//! What the figures were taken on, by what it can do and not by its name.

use std::fmt;
use std::fs::read_to_string;

pub struct Machine {
    cpus: usize,
    model: String,
    memory_gib: u64,
    kernel: String,
    congestion: String,
    huge_pages: String,
    load: String,
}

impl Machine {
    /// When the measurements begin.
    pub fn look() -> Machine {
        let read = |path: &str| read_to_string(path).unwrap_or_default().trim().to_owned();
        let field = |path: &str, name: &str| {
            let text = read(path);
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or_else(String::new, |(_, value)| value.trim().to_owned())
        };
        let kib: u64 = field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or_default();
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = thp.split('[').nth(1).and_then(|rest| rest.split(']').next());
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: field("/proc/cpuinfo", "model name"),
            memory_gib: kib.div_ceil(1 << 20),
            // What follows the number is a name.
            kernel: read("/proc/sys/kernel/osrelease").split('-').next().unwrap_or_default().to_owned(),
            congestion: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            huge_pages: chosen.unwrap_or("unknown").to_owned(),
            load: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(", "),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Taken on {} CPUs ({}), {} GiB, Linux {}, TCP congestion control `{}`, transparent huge pages `{}`. The load \
             averages at the start were {}.",
            self.cpus, self.model, self.memory_gib, self.kernel, self.congestion, self.huge_pages, self.load
        )
    }
}

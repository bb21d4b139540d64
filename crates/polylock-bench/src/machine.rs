//! The machine on which a benchmark runs.

use std::{env::consts, fmt, fs, thread};

/// The machine on which a benchmark runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// The processors that this process may use.
    pub cores: usize,
    /// The memory in bytes, if the system shows it (`/proc`).
    pub memory_bytes: Option<u64>,
    /// The model of the processor, if the system shows it.
    pub processor: Option<String>,
    /// The operating system.
    pub system: &'static str,
    /// The architecture.
    pub architecture: &'static str,
}

impl Machine {
    /// Returns this machine.
    #[must_use]
    pub fn current() -> Self {
        Self {
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: value("/proc/meminfo", "MemTotal").and_then(|text| kilobytes(&text)),
            processor: value("/proc/cpuinfo", "model name"),
            system: consts::OS,
            architecture: consts::ARCH,
        }
    }
}

/// Returns the first value of this key in a file with lines `key: value`.
fn value(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}

/// Returns the bytes of `123 kB`.
fn kilobytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} core{}", self.cores, if self.cores == 1 { "" } else { "s" })?;
        if let Some(bytes) = self.memory_bytes {
            let tenths = bytes.div_ceil(1 << 20) * 10 / 1024;
            write!(f, ", {}.{} GiB", tenths / 10, tenths % 10)?;
        }
        write!(f, ", {} {}", self.system, self.architecture)?;
        if let Some(processor) = &self.processor {
            write!(f, ", {processor}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_shown_with_its_units() {
        let memory_bytes = kilobytes("24689032 kB");
        assert_eq!(memory_bytes, Some(25_281_568_768));
        let machine =
            Machine { cores: 2, memory_bytes, processor: None, system: "linux", architecture: "x86_64" };
        assert_eq!(machine.to_string(), "2 cores, 23.5 GiB, linux x86_64");
        assert!(Machine::current().cores > 0);
    }
}

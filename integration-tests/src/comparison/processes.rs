//! The processor time and the memory of processes, from `/proc`.

use std::{collections::HashMap, ffi::OsString, fs, time::Duration};

/// The processor time of each thread of a process, in nanoseconds.
pub(super) struct ThreadTimes(HashMap<OsString, u64>);

impl ThreadTimes {
    /// Reads the times; `None` if the process has ended, or the system does not show them.
    pub(super) fn of(process: u32) -> Option<Self> {
        let mut times = HashMap::new();
        for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
            let thread = thread.ok()?;
            // A thread may end meanwhile.
            let Ok(stat) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
            times.insert(thread.file_name(), stat.split_whitespace().next()?.parse().ok()?);
        }
        Some(Self(times))
    }

    /// Returns the time that was used since `before`, except by threads that have ended: a virtual machine ends some of its compiler.
    pub(super) fn since(&self, before: &Self) -> Duration {
        let used =
            |(thread, time): (&OsString, &u64)| time.saturating_sub(*before.0.get(thread).unwrap_or(&0));
        Duration::from_nanos(self.0.iter().map(used).sum())
    }
}

/// Returns the memory of a process and its descendants in bytes; what they share counts once.
pub(super) fn shared_memory(process: u32) -> Option<u64> {
    let shares = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let share = shares.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let own = 1024 * share.trim().trim_end_matches(" kB").parse::<u64>().ok()?;
    children(process).into_iter().try_fold(own, |sum, child| Some(sum + shared_memory(child)?))
}

fn children(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_a_processor_and_memory() {
        let this = std::process::id();
        let before = ThreadTimes::of(this).expect("it runs");
        let used = || ThreadTimes::of(this).expect("it runs").since(&before);
        while used() < Duration::from_millis(20) {}
        assert!(ThreadTimes(HashMap::new()).since(&before).is_zero());
        assert!(shared_memory(this).is_some_and(|bytes| bytes > 100_000));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it is installed");
        assert!(children(this).contains(&child.id()));
        child.kill().and_then(|()| child.wait()).expect("it runs");
    }
}

//! The processor time and the memory of processes, from `/proc`.

use std::{fs, time::Duration};

/// Returns the processor time of all threads of a process.
pub(super) fn processor_time(process: u32) -> Option<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        // A thread may end meanwhile.
        let Ok(stat) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        nanos += stat.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
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
        assert!(processor_time(this).is_some_and(|time| time > Duration::ZERO));
        assert!(shared_memory(this).is_some_and(|bytes| bytes > 100_000));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it is installed");
        assert!(children(this).contains(&child.id()));
        child.kill().and_then(|()| child.wait()).expect("it runs");
    }
}

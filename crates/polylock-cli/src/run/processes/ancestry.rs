//! The ancestors of this process.

use rustix::process::{Pid, getpid};

use super::process::Stat;

/// The maximum number of walks along the ancestors while some of them end.
const MAX_WALKS: usize = 100;

/// Returns true if the process with the pid `ancestor` and this start time is an ancestor of this process; false if `/proc` does not show
/// it.
pub(in crate::run) fn has_ancestor(ancestor: Pid, started: u64) -> bool {
    // The parent of a process changes when that parent ends.
    (0..MAX_WALKS).find_map(|_| walk(ancestor, started)).unwrap_or(false)
}

/// Follows the parents of this process. Returns `None` if one of them ended meanwhile.
fn walk(ancestor: Pid, started: u64) -> Option<bool> {
    let mut child = Stat::of(getpid())?;
    while let Some(parent) = child.parent {
        let parent = Stat::of(parent)?;
        // The child still has this parent. Otherwise the pid could be that of another process by now.
        let again = Stat::of(child.id)?;
        if (again.parent, again.started) != (child.parent, child.started) {
            return None;
        }
        if (parent.id, parent.started) == (ancestor, started) {
            return Some(true);
        }
        child = parent;
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::getppid;

    use super::*;

    #[test]
    fn only_the_process_with_the_pid_and_the_start_time_is_an_ancestor() {
        let parent = Stat::of(getppid().unwrap()).unwrap();
        let grandparent = Stat::of(parent.parent.unwrap()).unwrap();
        for stat in [parent, grandparent] {
            assert!(has_ancestor(stat.id, stat.started));
            assert!(!has_ancestor(stat.id, stat.started - 1), "a process that had the pid before");
        }
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        for id in [Pid::from_child(&child), getpid()] {
            assert!(!has_ancestor(id, Stat::of(id).unwrap().started), "{id} is no ancestor");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

//! What is signalled and killed: the command with all that it started.

use std::{collections::HashMap, fs};

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};

/// The command and all that it started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// The first process, once it is there.
    command: Option<Pid>,
    /// The process group that is theirs alone, if they have one.
    group: Option<Pid>,
}

impl Target {
    /// `command` in a `group` that is led by its warden.
    pub(super) fn in_group(command: Pid, group: Pid) -> Self {
        Self { command: Some(command), group: Some(group) }
    }

    /// `command` in a group that it shares with strangers.
    pub(super) fn in_foreground(command: Pid) -> Self {
        Self { command: Some(command), group: None }
    }

    /// What the warden that asks this has to kill: all of its own group, and `command` wherever it is.
    pub(super) fn of_warden(command: Option<Pid>) -> Self {
        Self { command, group: Some(getpgrp()) }
    }

    /// Passes `signal` on: to the whole group, or to the command alone.
    pub(super) fn signal(self, signal: Signal) {
        // Whoever is gone needs no signal.
        match (self.group, self.command) {
            (Some(group), _) => kill_process_group(group, signal),
            (None, Some(command)) => kill_process(command, signal),
            (None, None) => Ok(()),
        }
        .ok();
    }

    /// Kills the group, and the descendants of the command that have left it.
    pub(super) fn kill(self) {
        // Before the kill, which makes orphans that nobody can trace.
        let strays = self.command.map(|command| descendants(command, self.group)).unwrap_or_default();
        for stray in strays {
            kill_process(stray, Signal::KILL).ok();
        }
        if let Some(group) = self.group {
            kill_process_group(group, Signal::KILL).ok();
        }
    }

    /// Whether anything is left of it but the warden, as far as the system tells.
    pub(super) fn is_gone(self) -> bool {
        let processes = processes();
        match self.group {
            Some(group) => {
                let member =
                    |process: &Process| process.group == group && process.id != group && process.runs;
                !processes.is_empty() && !processes.iter().any(member)
            }
            None => true,
        }
    }
}

struct Process {
    id: Pid,
    parent: Option<Pid>,
    group: Pid,
    runs: bool,
}

/// All processes; none where there is no `/proc`.
fn processes() -> Vec<Process> {
    let Ok(directory) = fs::read_dir("/proc") else { return Vec::new() };
    let stats = directory.flatten().filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit());
    stats.filter_map(|entry| parse(&fs::read_to_string(entry.path().join("stat")).ok()?)).collect()
}

/// `4711 (a name) S 1 4711 …`; the name may hold anything.
fn parse(stat: &str) -> Option<Process> {
    let (id, rest) = stat.split_once(' ')?;
    let mut rest = rest.rsplit_once(") ")?.1.split(' ');
    let state = rest.next()?;
    let mut pid = || Some(Pid::from_raw(rest.next()?.parse().ok()?));
    Some(Process {
        id: Pid::from_raw(id.parse().ok()?)?,
        parent: pid()?,
        group: pid()??,
        runs: !matches!(state, "Z" | "X"),
    })
}

/// `command` and all that stem from it, without those in `group`, the children after their parents.
fn descendants(command: Pid, group: Option<Pid>) -> Vec<Pid> {
    let processes = processes();
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for process in &processes {
        if let Some(parent) = process.parent {
            children.entry(parent).or_default().push(process.id);
        }
    }
    let mut found = vec![command];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children.get(parent).into_iter().flatten().copied());
        next += 1;
    }
    let groups: HashMap<Pid, Pid> = processes.iter().map(|process| (process.id, process.group)).collect();
    found.retain(|id| *id != getpid() && (group.is_none() || groups.get(id) != group.as_ref()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_confuse() {
        let process = parse("42 (a) b) S (c) S 7 40 40 0 -1 4194560").unwrap();
        assert_eq!(process.id, Pid::from_raw(42).unwrap());
        assert_eq!((process.parent, Some(process.group)), (Pid::from_raw(7), Pid::from_raw(40)));
        assert!(process.runs);
        assert!(parse("").is_none() && parse("1 x").is_none());
    }

    #[test]
    fn descendants_are_found_through_their_parents() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let id = Pid::from_child(&child);
        while descendants(id, None).len() < 2 {
            std::thread::yield_now();
        }
        Target::in_foreground(id).kill();
        child.wait().unwrap();
    }
}

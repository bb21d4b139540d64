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

    /// Asks all of it with `signal`: the group, and what has left it or never was in one.
    pub(super) fn ask(self, signal: Signal) -> Strays {
        let strays = self.strays();
        for stray in &strays.0 {
            kill_process(stray.id, signal).ok();
        }
        if let Some(group) = self.group {
            kill_process_group(group, signal).ok();
        }
        strays
    }

    /// Kills all of it.
    pub(super) fn kill(self) {
        // The strays are found before the kill makes orphans of them, which nobody can trace.
        self.strays().kill();
        if let Some(group) = self.group {
            kill_process_group(group, Signal::KILL).ok();
        }
    }

    /// The same when the command itself has ended, so that its number may soon be another's.
    pub(super) fn without_command(self) -> Self {
        Self { command: None, ..self }
    }

    /// Whether nothing is left of the group but its warden, as far as the system tells.
    pub(super) fn is_gone(self) -> bool {
        let Some(group) = self.group else { return true };
        let processes = processes();
        let member = |process: &Process| process.group == group && process.id != group && process.runs;
        !processes.is_empty() && !processes.iter().any(member)
    }

    /// The descendants of the command, and the command, that are not in the group.
    fn strays(self) -> Strays {
        Strays(self.command.map(|command| descendants(command, self.group)).unwrap_or_default())
    }
}

/// Processes that no group holds together, as they were seen once.
#[derive(Debug, Default)]
pub(super) struct Strays(Vec<Process>);

impl Strays {
    /// Kills those that are still what they were.
    pub(super) fn kill(&self) {
        for stray in self.0.iter().filter(|stray| stray.is_still_there()) {
            kill_process(stray.id, Signal::KILL).ok();
        }
    }

    /// Whether none is left.
    pub(super) fn are_gone(&self) -> bool {
        !self.0.iter().any(Process::is_still_there)
    }
}

#[derive(Debug, Clone)]
struct Process {
    id: Pid,
    parent: Option<Pid>,
    group: Pid,
    runs: bool,
    /// Tells it from a later process with the same number.
    started: u64,
}

impl Process {
    fn is_still_there(&self) -> bool {
        let now = fs::read_to_string(format!("/proc/{}/stat", self.id)).ok();
        now.and_then(|stat| parse(&stat)).is_some_and(|now| now.runs && now.started == self.started)
    }
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
    let (parent, group) = (pid()?, pid()??);
    Some(Process {
        id: Pid::from_raw(id.parse().ok()?)?,
        parent,
        group,
        runs: !matches!(state, "Z" | "X"),
        started: rest.nth(16)?.parse().ok()?,
    })
}

/// `command` and all that stem from it, without those in `group`, the children after their parents.
fn descendants(command: Pid, group: Option<Pid>) -> Vec<Process> {
    let processes = processes();
    let mut children: HashMap<Option<Pid>, Vec<&Process>> = HashMap::new();
    for process in &processes {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found: Vec<&Process> = processes.iter().filter(|process| process.id == command).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children.get(&Some(parent.id)).into_iter().flatten());
        next += 1;
    }
    let is_stray = |process: &&Process| process.id != getpid() && group != Some(process.group);
    found.into_iter().filter(is_stray).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_confuse() {
        let process =
            parse("42 (a) b) S (c) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 8123 9 9").unwrap();
        assert_eq!(process.id, Pid::from_raw(42).unwrap());
        assert_eq!((process.parent, Some(process.group)), (Pid::from_raw(7), Pid::from_raw(40)));
        assert!(process.runs && process.started == 8123);
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

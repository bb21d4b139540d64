//! The proof that an outer run supervises this process: its warden is an ancestor of it.
//!
//! The variables of a run also reach processes that it does not supervise, for instance through a tmux server, `at`, `systemd-run` or
//! `docker exec`. Such a process continues when the run ends, beside the next holder. So it must not run under the hold of that run.
//!
//! The proof is the warden and not polylock itself: polylock is also the parent of what the command of an earlier term has left, and of
//! processes from before its own `exec`.

use std::{env, fs, process::Command};

use rustix::process::{Pid, getpid};

use super::processes::{Process, Stat, children, has_ancestor};
use crate::outer_run::{OWNER, WARDENS};

/// Adds this warden to those of the outer runs.
pub(super) fn add_this_warden(command: &mut Command) {
    let (Some(stat), Ok(owner)) = (Stat::of(getpid()), env::var(OWNER)) else { return };
    let outer = env::var(WARDENS).unwrap_or_default();
    let line = Line { id: stat.id, started: stat.started, place: place(), owner };
    command.env(WARDENS, format!("{outer}{}\n", line.to_text()));
}

/// Returns the text that marks the environment of all processes that the warden `id` starts for its command; `None` if it is gone.
pub(super) fn mark_of(id: Pid) -> Option<String> {
    let line = Line { id, started: Stat::of(id)?.started, place: place(), owner: String::new() };
    Some(line.to_text())
}

/// Returns the children of this process with this [mark](mark_of).
pub(super) fn children_with(mark: &str) -> Vec<Process> {
    let processes = children().into_iter().filter_map(Process::open);
    processes.filter(|process| process.has_in_environment(mark)).collect()
}

/// Checks that the warden of the run of `owner` is an ancestor of this process.
///
/// # Errors
/// The reason why the run does not supervise this process, or why that is unknown.
pub(super) fn check_supervision(owner: &str) -> Result<(), String> {
    if cfg!(not(target_os = "linux")) {
        return Err("this system has no /proc that shows the ancestors of a process".to_owned());
    }
    let wardens = env::var(WARDENS).unwrap_or_default();
    let line = wardens.lines().filter_map(Line::parse).find(|line| line.owner == owner);
    let Some(Line { id, started, place: [boot, namespace], .. }) = line else {
        return Err(format!("{WARDENS} names no warden of it"));
    };
    let [own_boot, own_namespace] = place();
    if boot != own_boot {
        return Err("it runs on another machine, or ran before a restart of this one".to_owned());
    }
    if namespace != own_namespace {
        return Err("this process is in another PID namespace, as in a container".to_owned());
    }
    if !has_ancestor(id, started) {
        return Err(format!(
            "its warden, process {id}, is not an ancestor: a server such as tmux, at or docker has started this process, \
             or its warden was killed"
        ));
    }
    Ok(())
}

/// Returns where pids and start times have a meaning: the boot of a machine, and a PID namespace.
fn place() -> [String; 2] {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    // A system that does not show them has one of each.
    let word = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    [word(boot.trim()), word(&namespace.to_string_lossy())]
}

/// A warden, as a line of the variable.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    id: Pid,
    started: u64,
    place: [String; 2],
    owner: String,
}

impl Line {
    fn to_text(&self) -> String {
        let Self { id, started, place: [boot, namespace], owner } = self;
        // The owner is the last part, since it may contain blanks.
        format!("{id} {started} {namespace} {boot} {owner}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        let id = Pid::from_raw(words.next()?.parse().ok().filter(|number| *number > 0)?)?;
        let started = words.next()?.parse().ok()?;
        let (namespace, boot) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some(Self { id, started, place: [boot, namespace], owner: words.next()?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_as_it_was_written() {
        let place = ["123-4".to_owned(), "pid:[56]".to_owned()];
        let line = Line { id: Pid::INIT, started: 7, place, owner: "an owner:1/2".to_owned() };
        assert_eq!(line.to_text(), "1 7 pid:[56] 123-4 an owner:1/2");
        assert_eq!(Line::parse(&line.to_text()), Some(line));
        for invalid in ["", "1", "1 2 n b", "0 2 n b o", "-1 2 n b o", "1 -2 n b o", "x 2 n b o"] {
            assert_eq!(Line::parse(invalid), None, "{invalid}");
        }
    }
}

//! The terminal that a command is started on.

use std::{
    fs::File,
    io::{self, IsTerminal},
};

use rustix::process::{Pid, getpid};

use super::processes::Stat;

/// Whether the command belongs into the terminal's foreground: this process reads from a terminal, or its group is the one that may
/// use the terminal, as `polylock run x ssh host < file` does to ask for a password.
pub(super) fn is_in_foreground() -> bool {
    let of_terminal = |terminal: File| match rustix::termios::tcgetpgrp(terminal) {
        Ok(foreground) => Stat::of(getpid()).and_then(|stat| stat.group) == Some(foreground),
        Err(_) => false,
    };
    io::stdin().is_terminal() || File::open("/dev/tty").is_ok_and(of_terminal)
}

/// The process group of this process, if its session has job control: a process of the group has a parent in another group of
/// the session, which can continue what a terminal has stopped.
///
/// A terminal cannot stop an orphaned group, one without such a parent. A command in it whose parent is in another group would
/// change that: Ctrl-Z would stop everything for good.
pub(super) fn group_under_job_control() -> Option<Pid> {
    let this = Stat::of(getpid())?;
    let mut process = this;
    loop {
        let parent = Stat::of(process.parent.filter(|parent| *parent != Pid::INIT)?)?;
        if parent.session != this.session {
            return None;
        }
        if parent.group != this.group {
            return this.group;
        }
        process = parent;
    }
}

//! The terminal that a command is started on.

use std::{
    fs::File,
    io::{self, IsTerminal},
};

use rustix::process::{Pid, getpid};

use super::processes::Stat;

/// Returns true if the command belongs in the terminal's foreground: this process reads from a terminal, or its group is the terminal's
/// foreground group. An example is `polylock run x ssh host < file`, which prompts for a password.
pub(super) fn is_in_foreground() -> bool {
    let of_terminal = |terminal: File| match rustix::termios::tcgetpgrp(terminal) {
        Ok(foreground) => Stat::of(getpid()).and_then(|stat| stat.group) == Some(foreground),
        Err(_) => false,
    };
    io::stdin().is_terminal() || File::open("/dev/tty").is_ok_and(of_terminal)
}

/// Returns the process group of this process, if its session has job control: a process of the group has a parent in another group of the
/// session, which can continue processes that a terminal has stopped.
///
/// A terminal can't stop an orphaned group, one without such a parent. A command in it with a parent in another group would change that:
/// Ctrl-Z would stop all processes for good.
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

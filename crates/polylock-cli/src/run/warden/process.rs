//! The warden process itself: one thread, no runtime, no store.

use std::{
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use polylock::{Clock, Moment, SystemClock};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::Pid,
};

use super::{Word, command_from_the_start};
use crate::run::target::Target;

/// Watches until it is told to go or must kill.
pub(crate) fn main() -> ExitCode {
    outlive_signals();
    let mut watch = Watch { text: Vec::new(), command: command_from_the_start(), deadline: Moment::NEVER };
    // Whoever started it waits for this, and starts the command only then, if it is not there yet.
    let said = io::stdout().write_all(b"\n").and_then(|()| io::stdout().flush());
    match said.and_then(|()| watch.until_the_end()) {
        Ok(End::Dismissed) => ExitCode::SUCCESS,
        // What can't be watched any more is as bad as a deadline.
        Ok(End::Kill) | Err(_) => {
            watch.kill();
            ExitCode::FAILURE
        }
    }
}

/// Catches all signals that can be caught. Catching, not ignoring: it does not spread to others.
fn outlive_signals() {
    for signal in (1..=64).filter(|signal| !signal_hook::consts::FORBIDDEN.contains(signal)) {
        // Some numbers are no signals, and are refused; a handler that only sets a flag harms nobody.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).ok();
    }
}

enum End {
    Dismissed,
    Kill,
}

struct Watch {
    text: Vec<u8>,
    command: Option<Pid>,
    deadline: Moment,
}

impl Watch {
    fn until_the_end(&mut self) -> io::Result<End> {
        let timer = Timer::new()?;
        loop {
            // All that was said counts before the deadline does: after a pause of both sides a newer one may be waiting.
            while self.is_spoken_to()? {
                if let Some(end) = self.listen()? {
                    return Ok(end);
                }
            }
            if SystemClock.now() >= self.deadline {
                return Ok(End::Kill);
            }
            timer.wait(self.deadline)?;
        }
    }

    fn is_spoken_to(&self) -> io::Result<bool> {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        loop {
            match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                Err(Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }

    /// Reads once from the pipe, which has something or is closed.
    fn listen(&mut self) -> io::Result<Option<End>> {
        let mut buffer = [0; 4096];
        match rustix::io::read(io::stdin(), &mut buffer) {
            Err(Errno::INTR) => return Ok(None),
            Ok(0) => return Ok(Some(End::Kill)),
            read => self.text.extend_from_slice(&buffer[..read?]),
        }
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            match std::str::from_utf8(&line).ok().and_then(|line| Word::from_line(line.trim_end())) {
                Some(Word::Command(pid)) => self.command = Some(pid),
                Some(Word::Deadline(at)) => self.deadline = at,
                Some(Word::Done) => return Ok(Some(End::Dismissed)),
                None => {}
            }
        }
        Ok(None)
    }

    /// The last act: in a group of its own, this ends the warden, too.
    fn kill(&self) {
        Target::of_warden(self.command).kill();
    }
}

/// Wakes on a word or at a time on the clock that goes on while the machine sleeps.
struct Timer(Option<OwnedFd>);

impl Timer {
    #[cfg(target_os = "linux")]
    fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        Ok(Self(Some(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?)))
    }

    #[cfg(not(target_os = "linux"))]
    fn new() -> io::Result<Self> {
        Ok(Self(None))
    }

    #[cfg(target_os = "linux")]
    fn arm(timer: &OwnedFd, at: Moment) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};
        let nanos = i64::try_from(at.as_nanos()).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn arm(_: &OwnedFd, _: Moment) -> io::Result<()> {
        Ok(())
    }

    fn wait(&self, at: Moment) -> io::Result<()> {
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(&stdin, PollFlags::IN)];
        if let Some(timer) = &self.0 {
            Self::arm(timer, at)?;
            fds.push(PollFd::from_borrowed_fd(timer.as_fd(), PollFlags::IN));
        }
        // Without that timer, the machine may have slept: look at the clock every second.
        let look_again = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut fds, if self.0.is_some() { None } else { Some(&look_again) }) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

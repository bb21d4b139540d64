//! A timer on the clock that continues while the machine is suspended.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use polylock::{Clock, Moment, SystemClock};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Wakes at a time on the clock that continues while the machine is suspended.
pub(super) struct Timer(Option<OwnedFd>);

impl Timer {
    #[cfg(target_os = "linux")]
    pub(super) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        Ok(Self(Some(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?)))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn new() -> io::Result<Self> {
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

    /// Waits until `at`, or until one of `fds` is ready.
    pub(super) fn wait<'fd>(&'fd self, mut fds: Vec<PollFd<'fd>>, at: Moment) -> io::Result<()> {
        if let Some(timer) = &self.0 {
            Self::arm(timer, at)?;
            fds.push(PollFd::from_borrowed_fd(timer.as_fd(), PollFlags::IN));
        }
        // Without that timer, the machine may have been suspended: check the clock once a second at least.
        let left = at.since(SystemClock.now()).min(Duration::from_secs(1));
        let timeout = Timespec {
            tv_sec: i64::from(left >= Duration::from_secs(1)),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut fds, if self.0.is_some() { None } else { Some(&timeout) }) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

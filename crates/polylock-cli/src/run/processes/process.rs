//! One process, identified by more than its pid.

use std::fs;

use rustix::{
    io::{Errno, Result},
    process::{Pid, Signal, kill_process, test_kill_process},
};

use super::numbers::{self, Ids};

/// A process that is distinguished from a later one with the same pid.
///
/// On Linux 5.3 and later it is a pidfd, elsewhere a pid and a start time, which is compared immediately before each signal.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    id: Pid,
    identity: Identity,
}

#[derive(Debug, Clone)]
enum Identity {
    #[cfg(target_os = "linux")]
    Descriptor(std::sync::Arc<std::os::fd::OwnedFd>),
    /// `None` if there is no `/proc`.
    StartTime(Option<u64>),
}

impl Process {
    /// Opens the process with the pid `id`; `None` if there is none.
    pub(crate) fn open(id: Pid) -> Option<Self> {
        #[cfg(target_os = "linux")]
        match rustix::process::pidfd_open(id, rustix::process::PidfdFlags::empty()) {
            Ok(fd) => return Some(Self { id, identity: Identity::Descriptor(fd.into()) }),
            Err(Errno::SRCH) => return None,
            // The cause is an old kernel, a filter of system calls, or too many open files.
            Err(_) => {}
        }
        Self::by_start_time(id)
    }

    fn by_start_time(id: Pid) -> Option<Self> {
        let started = Stat::of(id).map(|stat| stat.started);
        let exists = started.is_some() || test_kill_process(id) != Err(Errno::SRCH);
        exists.then_some(Self { id, identity: Identity::StartTime(started) })
    }

    pub(in crate::run) fn id(&self) -> Pid {
        self.id
    }

    /// Sends `signal` to this process and to no other.
    ///
    /// # Errors
    /// `ESRCH` if it is gone, `EPERM` if it belongs to another user.
    pub(in crate::run) fn signal(&self, signal: Signal) -> Result<()> {
        match &self.identity {
            #[cfg(target_os = "linux")]
            Identity::Descriptor(fd) => rustix::process::pidfd_send_signal(fd, signal),
            Identity::StartTime(started) if Stat::of(self.id).map(|stat| stat.started) == *started => {
                kill_process(self.id, signal)
            }
            Identity::StartTime(_) => Err(Errno::SRCH),
        }
    }

    /// Returns true if it has ended: it is gone, or a zombie that its parent has not reaped yet.
    pub(crate) fn has_ended(&self) -> bool {
        match &self.identity {
            #[cfg(target_os = "linux")]
            Identity::Descriptor(fd) => {
                use rustix::event::{PollFd, PollFlags, Timespec, poll};
                let mut fds = [PollFd::new(fd, PollFlags::IN)];
                poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
            }
            Identity::StartTime(None) => test_kill_process(self.id) == Err(Errno::SRCH),
            Identity::StartTime(started) => {
                !Stat::of(self.id).is_some_and(|now| now.runs && Some(now.started) == *started)
            }
        }
    }

    /// Returns true if it runs and this process has no permission to signal it.
    pub(in crate::run) fn is_unkillable(&self) -> bool {
        // This sends no signal, so a reused pid does no harm; and then this process has ended.
        test_kill_process(self.id) == Err(Errno::PERM) && !self.has_ended()
    }

    /// Returns true if its environment, as it was started, contains this text. The environment of another user's process is not known.
    pub(in crate::run) fn has_in_environment(&self, text: &str) -> bool {
        let path = numbers::number_of(self.id).map(|number| format!("/proc/{number}/environ"));
        let environment = path.and_then(|path| fs::read(path).ok()).unwrap_or_default();
        environment.windows(text.len()).any(|part| part == text.as_bytes())
    }

    /// Returns the id of its user, if the system shows it.
    pub(in crate::run) fn user(&self) -> Option<u32> {
        use std::os::unix::fs::MetadataExt;
        let number = numbers::number_of(self.id)?;
        fs::metadata(format!("/proc/{number}")).ok().map(|entry| entry.uid())
    }
}

/// The contents of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::run) struct Stat {
    pub(in crate::run) id: Pid,
    /// `None` if it is outside of this container, as the processes of the next two fields may be, or if the process is being reaped.
    /// rustix' calls for them do not support that case.
    pub(in crate::run) parent: Option<Pid>,
    pub(in crate::run) group: Option<Pid>,
    pub(in crate::run) session: Option<Pid>,
    /// False for a zombie.
    runs: bool,
    /// The start time, in the system's own unit.
    pub(in crate::run) started: u64,
}

impl Stat {
    /// Reads the status of the process with the pid `id`; `None` if there is no such process, or no `/proc`.
    pub(in crate::run) fn of(id: Pid) -> Option<Self> {
        let number = numbers::number_of(id)?;
        let stat = Self::parse(&fs::read_to_string(format!("/proc/{number}/stat")).ok()?)?;
        if !numbers::differ() {
            return Some(stat);
        }
        let Ids { pid, group, session } = numbers::ids_of(number)?;
        // The number may be that of another process by now.
        let id = pid.filter(|pid| *pid == id)?;
        Some(Self { id, parent: stat.parent.and_then(numbers::pid_of), group, session, ..stat })
    }

    /// Parses `4711 (a name) S 1 4711 …`; the name may contain any character.
    pub(super) fn parse(stat: &str) -> Option<Self> {
        let (id, rest) = stat.split_once(' ')?;
        let mut rest = rest.rsplit_once(") ")?.1.split(' ');
        let state = rest.next()?;
        // The kernel shows -1 for the group and the session of a process that is being reaped.
        let pid = |text: &str| text.parse::<i32>().ok().map(|number| Pid::from_raw(number.max(0)));
        let mut pid_of = || pid(rest.next()?);
        Some(Self {
            id: pid(id)??,
            parent: pid_of()?,
            group: pid_of()?,
            session: pid_of()?,
            runs: !matches!(state, "Z" | "X"),
            started: rest.nth(15)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> (Child, Pid) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = Pid::from_child(&child);
        (child, id)
    }

    /// Opens the process in both forms.
    fn forms(id: Pid) -> [Process; 2] {
        [Process::open(id).unwrap(), Process::by_start_time(id).unwrap()]
    }

    #[test]
    fn a_name_with_brackets_and_spaces_is_parsed() {
        let stat =
            Stat::parse("42 (a) b) S (c) S 7 40 0 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 8123 9 9").unwrap();
        assert_eq!((Some(stat.id), stat.parent), (Pid::from_raw(42), Pid::from_raw(7)));
        assert_eq!((stat.group, stat.session), (Pid::from_raw(40), None));
        assert!(stat.runs && stat.started == 8123);
        let reaped = Stat::parse("42 (a) Z 7 -1 -1 0 -1 4194564 1 2 3 4 5 6 7 8 20 0 1 0 8123 0 0").unwrap();
        assert_eq!((reaped.parent, reaped.group, reaped.session), (Pid::from_raw(7), None, None));
        assert!(Stat::parse("").is_none() && Stat::parse("1 x").is_none());
    }

    #[test]
    fn an_ended_process_is_not_signalled_while_its_pid_is_in_use() {
        for form in [0, 1] {
            let (mut child, id) = sleeper();
            let process = forms(id)[form].clone();
            assert!(!process.has_ended() && !process.is_unkillable());
            process.signal(Signal::KILL).unwrap();
            while !process.has_ended() {
                std::thread::yield_now();
            }
            child.wait().unwrap();
            assert!(process.has_ended());
            assert_eq!(process.signal(Signal::KILL), Err(Errno::SRCH), "{process:?}");
        }
    }

    #[test]
    fn without_a_pidfd_the_start_time_detects_a_reused_pid() {
        let (mut child, id) = sleeper();
        let earlier =
            Process { id, identity: Identity::StartTime(Stat::of(id).map(|stat| stat.started - 1)) };
        assert!(earlier.has_ended());
        assert_eq!(earlier.signal(Signal::KILL), Err(Errno::SRCH));
        assert_eq!(child.try_wait().unwrap(), None, "another process was signalled");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

//! The messages between polylock and its warden: one line each, over a socket.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    time::Duration,
};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use polylock::Moment;
use rustix::process::Pid;

/// A message from polylock to its warden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// The next part of the command line.
    Argument(OsString),
    /// Start the command.
    Start(CommandGroup),
    /// Replace a warden that was killed: see [`Adopted`].
    Adopt(Adopted),
    /// Kill the command at this time.
    Deadline(Moment),
    /// Search for the processes, and report the time from `sent` to the end of the search.
    Search { sent: Moment },
    /// The command has ended: reap it and end, without a kill.
    Done,
}

/// The process group in which a command is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandGroup {
    /// A new group.
    New,
    /// This group, which is polylock's.
    Existing(Pid),
    /// The group that the command inherits from the warden, which is polylock's.
    Inherited,
}

/// A command that another warden has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Adopted {
    /// polylock's own pid, if all its children belong to the command or are wardens.
    pub(super) parent: Option<Pid>,
    pub(super) group: Option<Pid>,
    /// Processes by pid and start time: the command first, then the leader of its group.
    pub(super) members: Vec<(Pid, u64)>,
}

/// A message from the warden to polylock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The command runs. Its pid, and the pid of the leader of its group if the group is new.
    Started { command: Pid, leader: Option<Pid> },
    /// The command can't be run, with this error number.
    Failed(i32),
    /// The command has exited with this code.
    Exited(i32),
    /// The command was ended by this signal.
    Killed(i32),
    /// The command was stopped by this signal, by a debugger or a terminal.
    Stopped(i32),
    /// The deadline has passed, and the command is being killed.
    Expired,
    /// The reply to [`Order::Search`].
    SearchTook(Duration),
    /// This process of the command can't be signalled: it belongs to this user.
    Refused { process: Pid, user: Option<u32> },
}

impl Order {
    pub(super) fn to_line(&self) -> String {
        match self {
            Self::Argument(text) => {
                format!("argument {}\n", percent_encode(text.as_bytes(), NON_ALPHANUMERIC))
            }
            Self::Start(CommandGroup::New) => "start own\n".to_owned(),
            Self::Start(CommandGroup::Inherited) => "start warden\n".to_owned(),
            Self::Start(CommandGroup::Existing(group)) => format!("start {group}\n"),
            Self::Adopt(Adopted { parent, group, members }) => {
                let members: String =
                    members.iter().map(|(id, started)| format!(" {id} {started}")).collect();
                format!("adopt {} {}{members}\n", number(*parent), number(*group))
            }
            Self::Deadline(at) => format!("deadline {}\n", at.as_nanos()),
            Self::Search { sent } => format!("look {}\n", sent.as_nanos()),
            Self::Done => "done\n".to_owned(),
        }
    }

    pub(super) fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(match words.next()? {
            "argument" => {
                let bytes = percent_decode_str(words.next()?).collect();
                Self::Argument(OsString::from_vec(bytes))
            }
            "start" => Self::Start(match words.next()? {
                "own" => CommandGroup::New,
                "warden" => CommandGroup::Inherited,
                group => CommandGroup::Existing(pid(group)??),
            }),
            "adopt" => {
                let (parent, group) = (pid(words.next()?)?, pid(words.next()?)?);
                let mut members = Vec::new();
                while let Some(id) = words.next() {
                    members.push((pid(id)??, words.next()?.parse().ok()?));
                }
                Self::Adopt(Adopted { parent, group, members })
            }
            "deadline" => Self::Deadline(Moment::from_nanos(words.next()?.parse().ok()?)),
            "look" => Self::Search { sent: Moment::from_nanos(words.next()?.parse().ok()?) },
            "done" => Self::Done,
            _ => return None,
        })
    }
}

impl Event {
    pub(super) fn to_line(self) -> String {
        match self {
            Self::Started { command, leader } => format!("started {command} {}\n", number(leader)),
            Self::Failed(error) => format!("failed {error}\n"),
            Self::Exited(code) => format!("exited {code}\n"),
            Self::Killed(signal) => format!("killed {signal}\n"),
            Self::Stopped(signal) => format!("stopped {signal}\n"),
            Self::Expired => "expired\n".to_owned(),
            Self::SearchTook(time) => format!("took {}\n", time.as_nanos()),
            Self::Refused { process, user } => {
                format!("refused {process} {}\n", user.map_or_else(String::new, |user| user.to_string()))
            }
        }
    }

    pub(super) fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        if word == "expired" {
            return Some(Self::Expired);
        }
        let first = words.next()?;
        Some(match word {
            "started" => Self::Started { command: pid(first)??, leader: pid(words.next()?)? },
            "failed" => Self::Failed(first.parse().ok()?),
            "exited" => Self::Exited(first.parse().ok()?),
            "killed" => Self::Killed(first.parse().ok()?),
            "stopped" => Self::Stopped(first.parse().ok()?),
            "took" => Self::SearchTook(Duration::from_nanos(first.parse().ok()?)),
            "refused" => Self::Refused { process: pid(first)??, user: words.next()?.parse().ok() },
            _ => return None,
        })
    }
}

/// The received bytes, split into lines.
#[derive(Debug, Default)]
pub(super) struct Inbox(Vec<u8>);

impl Inbox {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Removes and returns the next complete line, without its line feed.
    pub(super) fn line(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).take(end).collect();
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

/// The hidden first argument that makes this program a warden.
pub(super) const WARDEN: &str = "__warden";
/// The hidden first argument that makes this program the leader of a command's process group.
pub(super) const LEADER: &str = "__leader";

/// Returns true if this process was started with `word` as its first argument.
pub(super) fn is_started_as(word: &str) -> bool {
    std::env::args_os().nth(1).as_deref() == Some(OsStr::new(word))
}

/// Returns the file of this program, even if a newer one has replaced it.
pub(crate) fn this_program() -> std::io::Result<std::path::PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}

/// Converts a pid to a number, 0 for none.
fn number(id: Option<Pid>) -> i32 {
    Pid::as_raw(id)
}

/// Parses the output of [`number`].
fn pid(text: &str) -> Option<Option<Pid>> {
    text.parse().ok().filter(|number| *number >= 0).map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_events_are_parsed_as_they_were_written() {
        let adopted = |group, members| Adopted { parent: group, group, members };
        for order in [
            Order::Argument("a b\n%".into()),
            Order::Argument(OsString::from_vec(vec![0xff, b'x'])),
            Order::Argument(OsString::new()),
            Order::Start(CommandGroup::New),
            Order::Start(CommandGroup::Inherited),
            Order::Start(CommandGroup::Existing(Pid::INIT)),
            Order::Adopt(adopted(None, vec![])),
            Order::Adopt(adopted(Some(Pid::INIT), vec![(Pid::INIT, 7), (Pid::INIT, 0)])),
            Order::Deadline(Moment::NEVER),
            Order::Deadline(Moment::from_nanos(12)),
            Order::Search { sent: Moment::from_nanos(12) },
            Order::Done,
        ] {
            assert_eq!(Order::from_line(order.to_line().trim_end_matches('\n')), Some(order));
        }
        for event in [
            Event::Started { command: Pid::INIT, leader: None },
            Event::Started { command: Pid::INIT, leader: Some(Pid::INIT) },
            Event::Failed(2),
            Event::Exited(255),
            Event::Killed(9),
            Event::Stopped(21),
            Event::Expired,
            Event::SearchTook(Duration::from_nanos(5)),
            Event::Refused { process: Pid::INIT, user: Some(0) },
            Event::Refused { process: Pid::INIT, user: None },
        ] {
            assert_eq!(Event::from_line(event.to_line().trim_end_matches('\n')), Some(event));
        }
        for invalid in
            ["", "done?", "deadline", "deadline -1", "start 0", "started 0 0", "exited x", "adopt 1 0 5"]
        {
            assert_eq!((Order::from_line(invalid), Event::from_line(invalid)), (None, None), "{invalid:?}");
        }
    }

    #[test]
    fn a_line_may_arrive_in_parts() {
        let mut inbox = Inbox::default();
        inbox.add(b"do");
        assert_eq!(inbox.line(), None);
        inbox.add(b"ne\nlook 1\n");
        assert_eq!((inbox.line().as_deref(), inbox.line().as_deref()), (Some("done"), Some("look 1")));
        assert_eq!(inbox.line(), None);
    }
}

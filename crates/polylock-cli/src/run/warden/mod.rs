//! The warden: a helper process that kills the command when polylock no longer can.
//!
//! The command must be dead before the lock can go to another, even if polylock itself is killed or stopped. So a second,
//! tiny process of the same program watches: polylock tells it each new deadline through a pipe, and it kills the command
//! when
//!
//! * the pipe closes, because polylock died without a word, or
//! * the deadline passes without a newer one, because polylock is stopped or hangs.
//!
//! The warden is the leader of the process group that the command runs in from its first instruction, so all that the
//! command starts is reached by one signal, and nothing can slip in between. It outlives the signals that are passed on to
//! the group. With `--foreground` the command is in the terminal's group instead, which the caller's other programs may
//! share: then the warden kills the command and its descendants one by one.
//!
//! Not "the child asks for a signal at its parent's death": that reaches neither the child's children nor a child whose
//! parent is merely stopped.

mod process;

use std::{env, ffi::OsStr, io, path::PathBuf, process::Stdio};

use polylock::Moment;
use rustix::process::Pid;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
};

pub(crate) use process::main;

/// The hidden first argument that makes this program a warden.
const CALL: &str = "__warden";

/// Whether this process was started as a warden.
pub(crate) fn is_called() -> bool {
    env::args_os().nth(1).as_deref() == Some(OsStr::new(CALL))
}

/// The command that is there already when a warden takes another's place. It knows it from the start: polylock may die before
/// it has said a word.
fn command_from_the_start() -> Option<Pid> {
    env::args().nth(2)?.parse().ok().and_then(Pid::from_raw)
}

/// What the warden is told, one line each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// The process to kill.
    Command(Pid),
    /// When to kill it.
    Deadline(Moment),
    /// All is well: go without killing.
    Done,
}

impl Word {
    fn to_line(self) -> String {
        match self {
            Self::Command(pid) => format!("command {pid}\n"),
            Self::Deadline(at) => format!("deadline {}\n", at.as_nanos()),
            Self::Done => "done\n".to_owned(),
        }
    }

    fn from_line(line: &str) -> Option<Self> {
        let (word, number) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "command" => number.parse().ok().and_then(Pid::from_raw).map(Self::Command),
            "deadline" => number.parse().ok().map(Moment::from_nanos).map(Self::Deadline),
            "done" => Some(Self::Done),
            _ => None,
        }
    }
}

/// polylock's end of the pipe.
#[derive(Debug)]
pub(super) struct Warden {
    helpers: Vec<Child>,
    pipe: ChildStdin,
    group: Pid,
    hidden: Vec<String>,
    command: Option<Pid>,
    deadline: Moment,
}

impl Warden {
    /// Starts a warden in a process group of its own, and waits until no signal can end it any more.
    ///
    /// `hidden` are the variables that it has no need to know.
    pub(super) async fn start(hidden: &[String]) -> io::Result<Self> {
        let (helper, pipe) = spawn(0, hidden, None).await?;
        let group = helper.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let group = group.ok_or_else(|| io::Error::other("the warden ended at once"))?;
        Ok(Self {
            helpers: vec![helper],
            pipe,
            group,
            hidden: hidden.to_vec(),
            command: None,
            deadline: Moment::NEVER,
        })
    }

    /// The process group that it leads.
    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// When it kills, as it was last told.
    pub(super) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Tells it what to watch.
    pub(super) async fn watch(&mut self, command: Pid) -> io::Result<()> {
        self.command = Some(command);
        self.tell(Word::Command(command)).await
    }

    /// Tells it when to kill, if that has changed.
    pub(super) async fn kill_at(&mut self, deadline: Moment) -> io::Result<()> {
        if deadline == self.deadline {
            return Ok(());
        }
        self.deadline = deadline;
        self.tell(Word::Deadline(deadline)).await
    }

    /// Sends it away without a kill, and leaves no zombie behind.
    pub(super) async fn dismiss(mut self) {
        // If it is dead, there is nobody to send away.
        self.pipe.write_all(Word::Done.to_line().as_bytes()).await.ok();
        drop(self.pipe);
        for mut helper in self.helpers {
            // It goes at once, unless someone has stopped it: then it is not worth waiting for.
            tokio::time::timeout(std::time::Duration::from_secs(1), helper.wait()).await.ok();
        }
    }

    /// Says it; if the warden was killed, another takes its place in the same group.
    async fn tell(&mut self, word: Word) -> io::Result<()> {
        if self.pipe.write_all(word.to_line().as_bytes()).await.is_ok() {
            return Ok(());
        }
        // The dead one is kept, not waited for: so the number of the group stays taken.
        let group = self.group.as_raw_nonzero().get();
        let (helper, pipe) = spawn(group, &self.hidden, self.command).await?;
        self.helpers.push(helper);
        self.pipe = pipe;
        let all = [self.command.map(Word::Command), Some(Word::Deadline(self.deadline))];
        for word in all.into_iter().flatten() {
            self.pipe.write_all(word.to_line().as_bytes()).await?;
        }
        Ok(())
    }
}

async fn spawn(group: i32, hidden: &[String], watched: Option<Pid>) -> io::Result<(Child, ChildStdin)> {
    let mut command = Command::new(this_program()?);
    for variable in hidden {
        command.env_remove(variable);
    }
    // No output of its own: it must not keep a pipe of the caller open.
    command.arg(CALL).args(watched.map(|pid| pid.to_string()));
    command.process_group(group).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut helper = command.spawn()?;
    let (Some(pipe), Some(mut ready)) = (helper.stdin.take(), helper.stdout.take()) else {
        return Err(io::Error::other("the warden has no pipe"));
    };
    ready.read_u8().await?;
    Ok((helper, pipe))
}

/// The file of this program, also if it was replaced by a newer one meanwhile.
fn this_program() -> io::Result<PathBuf> {
    let path = env::current_exe()?;
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back() {
        for word in [
            Word::Done,
            Word::Deadline(Moment::NEVER),
            Word::Deadline(Moment::from_nanos(12)),
            Word::Command(Pid::INIT),
        ] {
            assert_eq!(Word::from_line(word.to_line().trim_end()), Some(word));
        }
        for odd in ["", "done?", "deadline", "deadline -1", "command 0", "command x"] {
            assert_eq!(Word::from_line(odd), None, "{odd:?}");
        }
    }
}

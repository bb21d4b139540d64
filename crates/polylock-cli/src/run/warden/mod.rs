//! The warden: a process between polylock and the command, which kills the command when polylock can't.
//!
//! The command must be dead before another process can acquire the lock, even if polylock itself is killed or stopped. So polylock
//! starts a second process of the same program, which starts the command and knows the deadline. It kills the command and all
//! processes that the command has started when
//!
//! * the socket to polylock closes, because polylock was killed, or
//! * the deadline passes without a later one, because polylock is stopped or hangs.
//!
//! ```text
//! polylock ── warden ─┬─ leader of the command's process group
//!                     └─ command ── …
//! ```
//!
//! * The warden is the parent of the command and a child subreaper, so every process that the command starts remains its
//!   descendant: [`ProcessTree`].
//! * The warden does not reap the command before polylock has finished with it. Until then the number of the command is not
//!   reused, and signals to it reach the command or nothing.
//! * The process group is led by a third process, which does nothing. It keeps the number of the group from being reused, and the
//!   warden, which is not a member, survives the one signal that kills the group.
//! * polylock is a child subreaper, too. If the warden is killed, the command becomes polylock's child, and another warden is
//!   started: from then on polylock reaps the command, and the new warden finds the processes through polylock's children.
//! * With `--foreground` the command is in polylock's group instead, which other programs of the caller may share: then the
//!   processes are killed one by one.
//!
//! A parent-death signal is no alternative: it reaches neither the command's children nor a command whose parent is stopped.

mod message;
mod start;
mod timer;
mod watch;

use std::{
    env,
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, ExitCode, ExitStatus},
    time::Duration,
};

use polylock::{Clock, Moment, SystemClock};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, waitid};
use tokio::{
    net::UnixStream,
    signal::unix::{Signal as Signals, SignalKind, signal},
};

use self::{
    message::{Adopted, Event, Inbox, LEADER, Order, Place, WARDEN, is_called},
    start::{Starting, connection, pass_streams, spawn},
};
use super::{
    orphans::Orphans,
    processes::{Ancestor, Group, Process, ProcessTree, Stat, become_subreaper, children},
    terminal::group_under_job_control,
};

/// How long a warden may take to report the end of the command before it counts as stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many wardens in a row may end without an answer.
const REPLACEMENTS: u32 = 3;

/// Runs this process as a helper of another polylock, if it was started as one.
pub(crate) fn main() -> Option<ExitCode> {
    if is_called(WARDEN) {
        Some(watch::warden())
    } else if is_called(LEADER) {
        Some(watch::leader())
    } else {
        None
    }
}

/// An event reported by the warden.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report {
    /// The command has ended.
    Ended(ExitStatus),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// A look at all processes of the command, from the order on, took this long.
    Took(Duration),
    /// This process of the command belongs to another user, who is known by this number, and can't be killed.
    Refused(Pid, Option<u32>),
    /// The warden was killed or did not answer, and another one was started.
    Replaced,
}

/// Why a command was not started.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// It can't be run.
    Command(io::Error),
    /// There is no warden to start it.
    Warden(io::Error),
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> Self {
        Self::Warden(error)
    }
}

/// The text for a process that can't be killed.
pub(super) fn unkillable(process: Pid, user: Option<u32>) -> String {
    let user = user.map_or_else(|| "another user".to_owned(), |user| format!("user {user}"));
    format!("process {process} of the command belongs to {user} and can't be killed")
}

/// polylock's end of the socket.
#[derive(Debug)]
pub(super) struct Warden {
    /// The warden, until it is reaped: its number may be reused after that.
    process: Option<Child>,
    socket: UnixStream,
    inbox: Inbox,
    command: Process,
    /// When the command was found to have ended without a report from the warden.
    silent: Option<Moment>,
    /// The command and the leader of its group, by number and start time.
    members: Vec<(Pid, u64)>,
    group: Option<Pid>,
    /// Whether the command is polylock's own child, because its first warden was killed.
    adopted: bool,
    /// Whether the end of the command was reported.
    has_ended: bool,
    has_killed: bool,
    /// Whether a replacement of the warden is to be reported.
    was_replaced: bool,
    /// Whether polylock has no children but those of the command and its wardens.
    only_child: bool,
    child_signals: Signals,
    orphans: Orphans,
    deadline: Moment,
    /// How many wardens have been started since one has answered.
    replacements: u32,
}

impl Warden {
    /// Starts a warden, which starts the command `arguments` with the environment of `process`, to be killed at `deadline`.
    /// The command gets a process group of its own unless it is to stay in the `foreground`.
    ///
    /// # Errors
    /// See [`NotStarted`]; no process is left then.
    pub(super) async fn start(
        environment: impl FnOnce(&mut Command),
        arguments: &[OsString],
        foreground: bool,
        deadline: Moment,
        orphans: &Orphans,
    ) -> Result<Self, NotStarted> {
        let only_child = children().is_empty() && getpid() != Pid::INIT;
        become_subreaper();
        let child_signals = signal(SignalKind::child())?;
        let (socket, its) = connection()?;
        let place = match group_under_job_control() {
            _ if !foreground => Place::Own,
            Some(group) => Place::Group(group),
            None => Place::Warden,
        };
        let process = spawn(its, environment, place == Place::Warden, orphans)?;
        let mut starting = Starting { process, socket, inbox: Inbox::default(), orphans: orphans.clone() };
        let limit = SystemClock.sleep_until(deadline);
        let started = tokio::select! {
            started = starting.command(arguments, place, deadline) => started,
            () = limit => Err(NotStarted::Warden(io::Error::other("it did not answer before the deadline"))),
        };
        let (command, leader) = match started {
            Ok(started) => started,
            Err(error) => {
                starting.undo(only_child).await;
                return Err(error);
            }
        };
        let Starting { process, socket, inbox, orphans } = starting;
        let member = |id: Pid| Stat::of(id).map(|stat| (id, stat.started));
        Ok(Self {
            process: Some(process),
            socket,
            inbox,
            members: [command.id()].into_iter().chain(leader).filter_map(member).collect(),
            command,
            silent: None,
            group: leader,
            adopted: false,
            has_ended: false,
            has_killed: false,
            was_replaced: false,
            only_child,
            child_signals,
            orphans,
            deadline,
            replacements: 0,
        })
    }

    /// Whether the deadline has passed and it has killed the command.
    pub(super) fn has_killed(&self) -> bool {
        self.has_killed
    }

    /// The processes of the command, to be signalled by polylock itself.
    ///
    /// The numbers of the command and its group are their own until [`dismiss`](Self::dismiss).
    pub(super) fn tree(&self) -> ProcessTree {
        let warden = self.process.as_ref().map(Pid::from_child);
        let mut ancestors: Vec<Ancestor> = warden.map(Ancestor::Child).into_iter().collect();
        if self.only_child {
            // Where they are between the end of a warden and the start of the next.
            ancestors.push(Ancestor::This);
        }
        let excluded = self.members.iter().skip(1).map(|(leader, _)| *leader).chain(warden).collect();
        let group = self.group.map(Group::unreaped);
        ProcessTree {
            ancestors,
            excluded,
            command: Some(self.command.clone()),
            group,
            ..ProcessTree::default()
        }
    }

    /// Sends it the deadline at which it kills, if that has changed.
    ///
    /// # Errors
    /// If it was killed and no other can be started.
    pub(super) async fn kill_at(&mut self, deadline: Moment) -> io::Result<()> {
        if deadline == self.deadline {
            return Ok(());
        }
        self.deadline = deadline;
        self.send_or_replace(&Order::Deadline(deadline)).await
    }

    /// Has it look for the processes of the command. The answer is [`Report::Took`].
    ///
    /// # Errors
    /// As [`kill_at`](Self::kill_at).
    pub(super) async fn look(&mut self) -> io::Result<()> {
        self.check();
        self.send_or_replace(&Order::Look { sent: SystemClock.now() }).await
    }

    /// Checks whether the command has ended though the warden has not reported it. A stopped warden is replaced then.
    pub(super) fn check(&mut self) {
        if !self.has_ended && self.silent.is_none() && self.command.has_ended() {
            self.silent = Some(SystemClock.now());
        }
    }

    /// The next report.
    ///
    /// # Errors
    /// As [`kill_at`](Self::kill_at).
    ///
    /// # Cancel safety
    /// May be dropped at any point.
    pub(super) async fn next(&mut self) -> io::Result<Report> {
        loop {
            if std::mem::take(&mut self.was_replaced) {
                return Ok(Report::Replaced);
            }
            while let Some(line) = self.inbox.line() {
                if let Some(report) = Event::from_line(&line).and_then(|event| self.report(event)) {
                    return Ok(report);
                }
            }
            if let Some(status) = self.status_of_adopted() {
                return Ok(self.ended(status));
            }
            tokio::select! {
                received = receive(&self.socket, &mut self.inbox) => if received.is_err() {
                    self.replace().await?;
                },
                () = SystemClock.sleep_until(self.silent.map_or(Moment::NEVER, |since| since + PATIENCE)), if !self.adopted => {
                    // When it has ended, the command is polylock's child, whose status can be read.
                    self.silent = None;
                    self.process.as_mut().map_or(Ok(()), Child::kill)?;
                }
                _ = self.child_signals.recv(), if self.adopted => {}
            }
        }
    }

    /// Ends the warden without a kill, and reaps all processes that polylock has started.
    pub(super) async fn dismiss(mut self) {
        // Fails if it was killed. If it is stopped, it is killed below.
        self.send(&Order::Done).ok();
        if let Some(warden) = self.process.take() {
            end(warden, PATIENCE, &self.orphans).await;
        }
        for (child, _) in &self.members {
            self.orphans.release(*child);
        }
        self.orphans.reap();
    }

    fn report(&mut self, event: Event) -> Option<Report> {
        match event {
            // The encoding of a status by the system.
            Event::Exited(code) => Some(self.ended(ExitStatus::from_raw((code & 0xff) << 8))),
            Event::Killed(signal) => Some(self.ended(ExitStatus::from_raw(signal & 0x7f))),
            Event::Stopped(signal) => Some(Report::Stopped(signal)),
            Event::Took(time) => {
                self.replacements = 0;
                Some(Report::Took(time))
            }
            Event::Refused { process, user } => Some(Report::Refused(process, user)),
            Event::Expired => {
                self.has_killed = true;
                None
            }
            Event::Started { .. } | Event::Failed(_) => None,
        }
    }

    fn ended(&mut self, status: ExitStatus) -> Report {
        self.has_ended = true;
        self.silent = None;
        Report::Ended(status)
    }

    /// How the command has ended, if it has and it is polylock's own child. It stays a zombie.
    fn status_of_adopted(&self) -> Option<ExitStatus> {
        if !self.adopted || self.has_ended {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(self.command.id()), options) {
            Ok(Some(status)) => {
                let code = status.exit_status().map(|code| (code & 0xff) << 8);
                code.or(status.terminating_signal()).map(ExitStatus::from_raw)
            }
            Ok(None) => None,
            // Without subreapers the status is lost with the parent of the command.
            Err(_) => self.command.has_ended().then(|| ExitStatus::from_raw(Signal::KILL.as_raw())),
        }
    }

    async fn send_or_replace(&mut self, order: &Order) -> io::Result<()> {
        match self.send(order) {
            Ok(()) => Ok(()),
            // Killed; or stopped for so long that the socket is full.
            Err(_) => self.replace().await,
        }
    }

    /// Sends an order without ever waiting for a warden that does not read.
    fn send(&self, order: &Order) -> io::Result<()> {
        let line = order.to_line();
        match self.socket.try_write(line.as_bytes())? {
            number if number == line.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Starts another warden in place of one that was killed or does not answer. May be dropped and called again.
    async fn replace(&mut self) -> io::Result<()> {
        if self.replacements >= REPLACEMENTS {
            return Err(io::Error::other("every warden that is started ends at once"));
        }
        self.replacements += 1;
        if let Some(warden) = self.process.take() {
            // The command becomes polylock's child when the warden has ended.
            end(warden, Duration::ZERO, &self.orphans).await;
        }
        self.adopted = true;
        // Events that it sent before its end can still be read.
        while receive(&self.socket, &mut self.inbox).await.is_ok() {}
        let adopted = Adopted {
            parent: self.only_child.then(getpid),
            group: self.group,
            members: self.members.clone(),
        };
        let text = Order::Adopt(adopted).to_line() + &Order::Deadline(self.deadline).to_line();
        let (socket, its) = connection()?;
        // Written before the process is started: if polylock is killed right after that, the new warden has its orders.
        pass_streams(&socket).await?;
        socket.try_write(text.as_bytes())?;
        self.socket = socket;
        self.process = Some(spawn(its, |_| {}, false, &self.orphans)?);
        self.was_replaced = true;
        Ok(())
    }
}

/// Reads events into `inbox`. An error at the end of the stream.
async fn receive(socket: &UnixStream, inbox: &mut Inbox) -> io::Result<()> {
    loop {
        socket.readable().await?;
        let mut bytes = [0; 1024];
        match socket.try_read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(number) => {
                inbox.add(&bytes[..number]);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until a warden has ended, kills it after `patience`, and reaps it. Its number may be reused after that.
async fn end(mut warden: Child, patience: Duration, orphans: &Orphans) {
    const LOOK_AGAIN: Duration = Duration::from_millis(1);
    let limit = SystemClock.now() + patience;
    while SystemClock.now() < limit && matches!(warden.try_wait(), Ok(None)) {
        SystemClock.sleep_until(SystemClock.now() + LOOK_AGAIN).await;
    }
    // Does nothing to one that was reaped by now.
    warden.kill().ok();
    warden.wait().ok();
    orphans.release(Pid::from_child(&warden));
}

/// The file of this program, also if it was replaced by a newer one meanwhile.
fn this_program() -> io::Result<PathBuf> {
    let path = env::current_exe()?;
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}

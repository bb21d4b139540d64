//! The warden: a process between polylock and the command, which kills the command when polylock can't.
//!
//! The command must be dead before another process can acquire the lock, even if polylock itself is killed or stopped. So polylock starts
//! a second process of the same program, which starts the command and knows the deadline. It kills the command and all processes that the
//! command has started when
//!
//! * the socket to polylock closes, because polylock was killed, or
//! * the deadline passes without a later one, because polylock is stopped or hangs.
//!
//! ```text
//! polylock ── warden ─┬─ leader of the command's process group
//!                     └─ command ── …
//! ```
//!
//! * The warden is the parent of the command and a child subreaper, so every process that the command starts remains its descendant:
//!   [`ProcessTree`].
//! * The warden does not reap the command before polylock has finished with it. Until then the pid of the command is not reused, and a
//!   signal to it reaches the command or no process.
//! * The process group is led by a third process, which does nothing. It prevents the reuse of the group's id, and the warden, which is
//!   not a member, survives the one signal that kills the group.
//! * polylock is a child subreaper, too. If the warden is killed, the command becomes polylock's child, and another warden is started:
//!   from then on polylock reaps the command, and the new warden finds the processes through polylock's children.
//! * With `--foreground` the command is in polylock's group instead, which other programs of the caller may share: then the processes are
//!   killed one by one.
//!
//! A parent-death signal is no alternative: it reaches neither the command's children nor a command with a stopped parent.

#[cfg(test)]
mod fuzz;
mod message;
mod start;
mod timer;
mod watch;

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
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
    message::{Adopted, CommandGroup, Event, Inbox, LEADER, Order, WARDEN, is_started_as},
    start::{Closed, StartingWarden, end_warden, pass_streams, receive, socket_pair, spawn},
};
use super::{
    orphans::OrphanReaper,
    processes::{Ancestor, Group, Process, ProcessTree, Stat, become_subreaper, children},
    terminal::group_under_job_control,
};

pub(crate) use self::message::this_program;
pub(super) use self::start::StartError;

/// The time that a warden may take to report the end of the command before it counts as stopped.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of consecutive wardens that end without a reply.
const MAX_REPLACEMENTS: u32 = 3;

/// Runs this process as a helper of another polylock, if it was started as one.
pub(crate) fn main() -> Option<ExitCode> {
    if is_started_as(WARDEN) {
        Some(watch::warden())
    } else if is_started_as(LEADER) {
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
    /// The duration of a search for all processes of the command, from the order on.
    SearchTook(Duration),
    /// This process of the command belongs to another user, with this id, and can't be killed.
    Refused(Pid, Option<u32>),
    /// The warden was killed or did not reply, and another one was started.
    Replaced,
}

/// polylock's end of the socket.
#[derive(Debug)]
pub(super) struct Warden {
    /// The warden, until it is reaped: its pid may be reused after that.
    process: Option<Child>,
    socket: UnixStream,
    inbox: Inbox,
    command: Process,
    /// The time at which the command was found to have ended without a report from the warden.
    unreported_end: Option<Moment>,
    /// The command and the leader of its group, by pid and start time.
    members: Vec<(Pid, u64)>,
    group: Option<Pid>,
    /// True if the command is polylock's own child, because its first warden was killed.
    adopted: bool,
    /// True if the end of the command was reported.
    has_ended: bool,
    has_killed: bool,
    /// True if a replacement of the warden is still to be reported.
    was_replaced: bool,
    /// True if polylock has no children but those of the command and its wardens.
    has_no_other_children: bool,
    child_signals: Signals,
    orphans: OrphanReaper,
    deadline: Moment,
    /// The number of wardens that have been started since the last reply of one.
    replacements: u32,
}

impl Warden {
    /// Starts a warden, which starts the command `arguments` with the variables that `environment` sets, to be killed at `deadline`. The
    /// command gets a process group of its own unless it is to stay in the `foreground`.
    ///
    /// If the warden is killed before it could start the command, another one is started.
    ///
    /// # Errors
    /// See [`StartError`]; no process is left then.
    pub(super) async fn start(
        environment: impl Fn(&mut Command) + Sync,
        arguments: &[OsString],
        foreground: bool,
        deadline: Moment,
        orphans: &OrphanReaper,
    ) -> Result<Self, StartError> {
        let has_no_other_children = children().is_empty() && getpid() != Pid::INIT;
        become_subreaper();
        let mut ended = 0;
        loop {
            let started = Self::start_once(
                &environment,
                arguments,
                foreground,
                deadline,
                orphans,
                has_no_other_children,
            );
            match started.await {
                Ok(warden) => return Ok(Self { was_replaced: ended > 0, ..warden }),
                Err(StartError::NotBegun(_, status)) if ended == MAX_REPLACEMENTS => {
                    return Err(StartError::NotBegun(ended + 1, status));
                }
                Err(StartError::NotBegun(..)) => ended += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts one warden, which starts the command.
    async fn start_once(
        environment: impl FnOnce(&mut Command),
        arguments: &[OsString],
        foreground: bool,
        deadline: Moment,
        orphans: &OrphanReaper,
        has_no_other_children: bool,
    ) -> Result<Self, StartError> {
        let child_signals = signal(SignalKind::child())?;
        let (socket, warden_socket) = socket_pair()?;
        let command_group = match group_under_job_control() {
            _ if !foreground => CommandGroup::New,
            Some(group) => CommandGroup::Existing(group),
            None => CommandGroup::Inherited,
        };
        let process = spawn(warden_socket, environment, command_group == CommandGroup::Inherited, orphans)?;
        let mut starting =
            StartingWarden { process, socket, inbox: Inbox::default(), orphans: orphans.clone() };
        let limit = SystemClock.sleep_until(deadline);
        let started = tokio::select! {
            started = starting.command(arguments, command_group, deadline) => started,
            () = limit => Err(StartError::Warden(io::Error::other("no reply before the deadline"))),
        };
        let (command, leader) = match started {
            Ok(started) => started,
            Err(error) => {
                let closed = Closed::of(&error);
                // A warden that has closed its end is about to end.
                let timeout = if closed.is_some() { REPORT_TIMEOUT } else { Duration::ZERO };
                let status = starting.abort(has_no_other_children, timeout).await;
                return Err(match closed {
                    Some(Closed::WithUnreadOrders) => StartError::NotBegun(1, status),
                    Some(Closed::AfterAllOrders) => StartError::Killed(status),
                    None => error,
                });
            }
        };
        let StartingWarden { process, socket, inbox, orphans } = starting;
        let member = |id: Pid| Stat::of(id).map(|stat| (id, stat.started));
        Ok(Self {
            process: Some(process),
            socket,
            inbox,
            members: [command.id()].into_iter().chain(leader).filter_map(member).collect(),
            command,
            unreported_end: None,
            group: leader,
            adopted: false,
            has_ended: false,
            has_killed: false,
            was_replaced: false,
            has_no_other_children,
            child_signals,
            orphans,
            deadline,
            replacements: 0,
        })
    }

    /// Returns true if the deadline has passed and the warden has killed the command.
    pub(super) fn has_killed(&self) -> bool {
        self.has_killed
    }

    /// Returns the processes of the command, for signals from polylock itself.
    ///
    /// The ids of the command and its group are not reused before [`shut_down`](Self::shut_down).
    pub(super) fn tree(&self) -> ProcessTree {
        let warden = self.process.as_ref().map(Pid::from_child);
        let mut ancestors: Vec<Ancestor> = warden.map(Ancestor::Child).into_iter().collect();
        if self.has_no_other_children {
            // Between the end of a warden and the start of the next, they are children of this process.
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

    /// Sends the warden the deadline at which it kills, if that has changed.
    ///
    /// # Errors
    /// If the warden was killed and no other can be started.
    pub(super) async fn kill_at(&mut self, deadline: Moment) -> io::Result<()> {
        if deadline == self.deadline {
            return Ok(());
        }
        self.deadline = deadline;
        self.send_or_replace(&Order::Deadline(deadline)).await
    }

    /// Makes the warden search for the processes of the command. The reply is [`Report::SearchTook`].
    ///
    /// # Errors
    /// As [`kill_at`](Self::kill_at).
    pub(super) async fn search(&mut self) -> io::Result<()> {
        self.check_end_of_command();
        self.send_or_replace(&Order::Search { sent: SystemClock.now() }).await
    }

    /// Checks if the command has ended without a report from the warden. A stopped warden is then replaced.
    pub(super) fn check_end_of_command(&mut self) {
        if !self.has_ended && self.unreported_end.is_none() && self.command.has_ended() {
            self.unreported_end = Some(SystemClock.now());
        }
    }

    /// Waits for the next report.
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
                () = SystemClock.sleep_until(self.unreported_end.map_or(Moment::NEVER, |since| since + REPORT_TIMEOUT)), if !self.adopted => {
                    // When the warden has ended, the command is polylock's child, and its status can be read.
                    self.unreported_end = None;
                    self.process.as_mut().map_or(Ok(()), Child::kill)?;
                }
                _ = self.child_signals.recv(), if self.adopted => {}
            }
        }
    }

    /// Ends the warden without a kill, and reaps all processes that polylock has started.
    pub(super) async fn shut_down(mut self) {
        // This fails if the warden was killed. If it is stopped, it is killed below.
        self.send(&Order::Done).ok();
        if let Some(warden) = self.process.take() {
            end_warden(warden, REPORT_TIMEOUT, &self.orphans).await;
        }
        for (child, _) in &self.members {
            self.orphans.include(*child);
        }
        self.orphans.reap();
    }

    fn report(&mut self, event: Event) -> Option<Report> {
        match event {
            // These are the system's encodings of a status.
            Event::Exited(code) => Some(self.ended(ExitStatus::from_raw((code & 0xff) << 8))),
            Event::Killed(signal) => Some(self.ended(ExitStatus::from_raw(signal & 0x7f))),
            Event::Stopped(signal) => Some(Report::Stopped(signal)),
            Event::SearchTook(time) => {
                self.replacements = 0;
                Some(Report::SearchTook(time))
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
        self.unreported_end = None;
        Report::Ended(status)
    }

    /// Returns the status of the command, if it has ended and is polylock's own child. It stays a zombie.
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
            // The warden was killed, or it has been stopped for so long that the socket is full.
            Err(_) => self.replace().await,
        }
    }

    /// Sends an order without waiting for a warden that does not read.
    fn send(&self, order: &Order) -> io::Result<()> {
        let line = order.to_line();
        match self.socket.try_write(line.as_bytes())? {
            number if number == line.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Starts another warden that replaces one that was killed or does not reply. May be dropped and called again.
    async fn replace(&mut self) -> io::Result<()> {
        if self.replacements >= MAX_REPLACEMENTS {
            return Err(io::Error::other("all replacements of the warden ended without a reply"));
        }
        self.replacements += 1;
        if let Some(warden) = self.process.take() {
            // The command becomes polylock's child when the warden has ended.
            end_warden(warden, Duration::ZERO, &self.orphans).await;
        }
        self.adopted = true;
        // Events that it sent before its end can still be read.
        while receive(&self.socket, &mut self.inbox).await.is_ok() {}
        let adopted = Adopted {
            parent: self.has_no_other_children.then(getpid),
            group: self.group,
            members: self.members.clone(),
        };
        let text = Order::Adopt(adopted).to_line() + &Order::Deadline(self.deadline).to_line();
        let (socket, warden_socket) = socket_pair()?;
        // The orders are written before the process is started: if polylock is killed right after that, the new warden has them.
        pass_streams(&socket).await?;
        socket.try_write(text.as_bytes())?;
        self.socket = socket;
        self.process = Some(spawn(warden_socket, |_| {}, false, &self.orphans)?);
        self.was_replaced = true;
        Ok(())
    }
}

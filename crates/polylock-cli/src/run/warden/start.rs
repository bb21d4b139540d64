//! Starts a warden, and the command through it.

use std::{
    ffi::OsString,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            net,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use polylock::{Clock, Moment, SystemClock};
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{Pid, Signal},
};
use tokio::{io::AsyncWriteExt, net::UnixStream};

use super::message::{CommandGroup, Event, Inbox, Order, WARDEN, this_program};
use crate::{
    limits::process_advice,
    run::{
        orphans::OrphanReaper,
        outer_warden::{children_with, mark_of},
        processes::{Ancestor, Process, ProcessTree},
    },
    signals,
};

/// The reason why a command was not started.
#[derive(Debug)]
pub(in crate::run) enum StartError {
    /// The command can't be run.
    Command(io::Error),
    /// There is no warden to start it.
    Warden(io::Error),
    /// That many wardens have ended before they could start it, the last one with this status.
    NotBegun(u32, Option<ExitStatus>),
    /// The warden has ended with this status, and it may have started it. All that it has started was killed.
    Killed(Option<ExitStatus>),
}

impl StartError {
    /// Returns the text for the user, with a remedy.
    pub(in crate::run) fn text(&self) -> String {
        const REMEDY: &str = "find the program that did it, such as the OOM killer (`dmesg`)";
        let end = |status: &Option<ExitStatus>| match status.map(|status| (status.signal(), status.code())) {
            Some((Some(signal), _)) => {
                let name = Signal::from_named_raw(signal).map_or_else(|| signal.to_string(), signals::name);
                format!("was ended by {name}")
            }
            Some((None, Some(code))) => format!("ended with {code}"),
            _ => "ended".to_owned(),
        };
        match self {
            Self::Command(error) | Self::Warden(error) => {
                let problem = process_advice(error).map_or_else(|| error.to_string(), str::to_owned);
                format!("can't start the warden: {problem}")
            }
            Self::NotBegun(times, status) => {
                format!("can't start the command: its warden {}, {times} times; {REMEDY}", end(status))
            }
            Self::Killed(status) => format!(
                "can't supervise the command: its warden {} while it started the command; the command was killed, if it had begun; \
                 {REMEDY}, and run it again",
                end(status)
            ),
        }
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Warden(error)
    }
}

/// A warden that has not yet started its command.
pub(super) struct StartingWarden {
    pub(super) process: Child,
    pub(super) socket: UnixStream,
    pub(super) inbox: Inbox,
    pub(super) orphans: OrphanReaper,
}

impl StartingWarden {
    /// Starts the command. Returns the command, and the leader of its group if the group is new.
    pub(super) async fn command(
        &mut self,
        arguments: &[OsString],
        command_group: CommandGroup,
        deadline: Moment,
    ) -> Result<(Process, Option<Pid>), StartError> {
        pass_streams(&self.socket).await?;
        // The deadline comes first: if polylock is stopped right after this, the warden kills in time.
        let mut text = Order::Deadline(deadline).to_line();
        arguments.iter().for_each(|argument| text += &Order::Argument(argument.clone()).to_line());
        text += &Order::Start(command_group).to_line();
        self.socket.write_all(text.as_bytes()).await?;
        let event = loop {
            if let Some(line) = self.inbox.line() {
                break Event::from_line(&line);
            }
            receive(&self.socket, &mut self.inbox).await?;
        };
        match event {
            Some(Event::Started { command, leader }) => {
                for child in leader.into_iter().chain([command]) {
                    self.orphans.exclude(child);
                }
                // The pid is not reused before `Order::Done`, so this is the command.
                let process = Process::open(command).ok_or_else(|| io::Error::from(Errno::SRCH))?;
                Ok((process, leader))
            }
            Some(Event::Failed(error)) => Err(StartError::Command(io::Error::from_raw_os_error(error))),
            _ => Err(StartError::Warden(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Kills the warden and all processes that it has started. Returns the status of a warden that ends by itself within `timeout`.
    pub(super) async fn abort(self, has_no_other_children: bool, timeout: Duration) -> Option<ExitStatus> {
        let warden = Pid::from_child(&self.process);
        let mut tree = ProcessTree { ancestors: vec![Ancestor::Child(warden)], ..ProcessTree::default() };
        tree.kill();
        let mark = mark_of(warden);
        let status = end_warden(self.process, timeout, &self.orphans).await;
        // What it has started is a child of polylock now, perhaps beside others.
        tree.ancestors = if has_no_other_children { vec![Ancestor::This] } else { Vec::new() };
        loop {
            tree.outside = mark.iter().flat_map(|mark| children_with(mark)).collect();
            if tree.kill().is_empty() {
                return status;
            }
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(1)).await;
        }
    }
}

/// The way in which the connection to a starting warden has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// The warden has not read its last order, which is the one to start the command.
    WithUnreadOrders,
    /// The warden may have started the command.
    AfterAllOrders,
}

impl Closed {
    /// Returns how the connection has ended, if that is the reason of this error. Only the end of the warden closes it.
    pub(super) fn of(error: &StartError) -> Option<Self> {
        let StartError::Warden(error) = error else { return None };
        match error.kind() {
            // Linux reports a reset if the other end was closed with data that it had not read.
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Some(Self::WithUnreadOrders),
            io::ErrorKind::UnexpectedEof => Some(Self::AfterAllOrders),
            _ => None,
        }
    }
}

/// Creates a socket, and returns polylock's end and the warden's end.
pub(super) fn socket_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (own, warden_socket) = net::UnixStream::pair()?;
    own.set_nonblocking(true)?;
    Ok((UnixStream::from_std(own)?, warden_socket.into()))
}

/// Starts a warden that reads its orders from this end of a socket. It has a process group of its own, so that it survives signals to
/// polylock's group, unless it `inherits_group`.
pub(super) fn spawn(
    warden_socket: OwnedFd,
    environment: impl FnOnce(&mut Command),
    inherits_group: bool,
    orphans: &OrphanReaper,
) -> io::Result<Child> {
    let mut command = Command::new(this_program()?);
    environment(&mut command);
    // It does not inherit the caller's output, which it would keep open.
    command.arg(WARDEN).stdout(Stdio::null()).stderr(Stdio::null());
    if !inherits_group {
        command.process_group(0);
    }
    let process = command.stdin(warden_socket).spawn()?;
    orphans.exclude(Pid::from_child(&process));
    Ok(process)
}

/// Sends the warden polylock's standard streams, for the command.
pub(super) async fn pass_streams(socket: &UnixStream) -> io::Result<()> {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    loop {
        socket.writable().await?;
        let sent = socket.try_io(tokio::io::Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&streams));
            // Descriptors require a message of at least one byte. An empty line is not an order.
            Ok(sendmsg(socket, &[IoSlice::new(b"\n")], &mut control, SendFlags::empty())?)
        });
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent.map(drop),
        }
    }
}

/// Reads events into `inbox`. Returns an error at the end of the stream.
pub(super) async fn receive(socket: &UnixStream, inbox: &mut Inbox) -> io::Result<()> {
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

/// Waits until a warden has ended, kills it after `timeout`, and reaps it. Its pid may be reused after that. Returns its status if it was
/// not killed here.
pub(super) async fn end_warden(
    mut warden: Child,
    timeout: Duration,
    orphans: &OrphanReaper,
) -> Option<ExitStatus> {
    const CHECK_INTERVAL: Duration = Duration::from_millis(1);
    let limit = SystemClock.now() + timeout;
    let mut status = None;
    while SystemClock.now() < limit {
        let Ok(None) = warden.try_wait().inspect(|ended| status = *ended) else { break };
        SystemClock.sleep_until(SystemClock.now() + CHECK_INTERVAL).await;
    }
    // This has no effect on a warden that has been reaped.
    warden.kill().ok();
    warden.wait().ok();
    orphans.include(Pid::from_child(&warden));
    status
}

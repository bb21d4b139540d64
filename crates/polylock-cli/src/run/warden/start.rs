//! The start of a warden, and of the command by it.

use std::{
    ffi::OsString,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

use polylock::{Clock, Moment, SystemClock};
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::Pid,
};
use tokio::{io::AsyncWriteExt, net::UnixStream};

use super::{
    NotStarted, end,
    message::{Event, Inbox, Order, Place, WARDEN},
    receive, this_program,
};
use crate::run::{
    orphans::Orphans,
    processes::{Ancestor, Process, ProcessTree},
};

/// A warden that has not yet started its command.
pub(super) struct Starting {
    pub(super) process: Child,
    pub(super) socket: UnixStream,
    pub(super) inbox: Inbox,
    pub(super) orphans: Orphans,
}

impl Starting {
    /// Has the command started: the command, and the leader of its group if that is its own.
    pub(super) async fn command(
        &mut self,
        arguments: &[OsString],
        place: Place,
        deadline: Moment,
    ) -> Result<(Process, Option<Pid>), NotStarted> {
        pass_streams(&self.socket).await?;
        // The deadline comes first: if polylock is stopped right after this, the warden kills in time.
        let mut text = Order::Deadline(deadline).to_line();
        arguments.iter().for_each(|argument| text += &Order::Argument(argument.clone()).to_line());
        text += &Order::Start(place).to_line();
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
                    self.orphans.keep(child);
                }
                // The number is not reused before `Order::Done`, so this is the command.
                let process = Process::open(command).ok_or_else(|| io::Error::from(Errno::SRCH))?;
                Ok((process, leader))
            }
            Some(Event::Failed(error)) => Err(NotStarted::Command(io::Error::from_raw_os_error(error))),
            _ => Err(NotStarted::Warden(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Kills the warden and all processes that it has started.
    pub(super) async fn undo(self, only_child: bool) {
        let warden = Pid::from_child(&self.process);
        let mut tree = ProcessTree { ancestors: vec![Ancestor::Child(warden)], ..ProcessTree::default() };
        tree.kill();
        tree.ancestors.clear();
        end(self.process, Duration::ZERO, &self.orphans).await;
        if only_child {
            tree.ancestors = vec![Ancestor::This];
            while !tree.kill().is_empty() {
                SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(1)).await;
            }
        }
    }
}

/// polylock's end of a new socket, and its warden's.
pub(super) fn connection() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, its) = net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, its.into()))
}

/// Starts a warden that reads its orders from this end of a socket. It has a process group of its own, so that it survives signals
/// to polylock's group, unless it must be `beside` polylock.
pub(super) fn spawn(
    its: OwnedFd,
    environment: impl FnOnce(&mut Command),
    beside: bool,
    orphans: &Orphans,
) -> io::Result<Child> {
    let mut command = Command::new(this_program()?);
    environment(&mut command);
    // Without the caller's output, which it would keep open.
    command.arg(WARDEN).stdout(Stdio::null()).stderr(Stdio::null());
    if !beside {
        command.process_group(0);
    }
    let process = command.stdin(its).spawn()?;
    orphans.keep(Pid::from_child(&process));
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
            // Descriptors need a message of at least one byte. An empty line is no order.
            Ok(sendmsg(socket, &[IoSlice::new(b"\n")], &mut control, SendFlags::empty())?)
        });
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent.map(drop),
        }
    }
}

//! The warden process: one thread, no runtime, no store.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::File,
    io::{self, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use polylock::{Clock, Moment, SystemClock};
use rustix::{
    event::{PollFd, PollFlags},
    io::{Errno, FdFlags, fcntl_setfd},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send},
    process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid},
};

use super::{
    message::{Adopted, CommandGroup, Event, Inbox, LEADER, Order, this_program},
    timer::Timer,
};
use crate::{
    run::{
        outer_warden::add_this_warden,
        processes::{Ancestor, Group, Process, ProcessTree, Stat, become_subreaper, children, unkillable},
    },
    signals,
};

/// The interval between kills while killed processes have not ended yet.
const DYING_INTERVAL: Duration = Duration::from_millis(2);
/// The interval between kills that the system refuses: the process may change its user again.
const REFUSED_INTERVAL: Duration = Duration::from_millis(200);
/// The time that a warden without polylock stays with killed processes that do not end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The size of unsent events in bytes from which optional ones are dropped.
const MAX_UNSENT: usize = 4096;

/// Runs the warden process until its command has ended or was killed.
pub(crate) fn warden() -> ExitCode {
    catch_signals();
    become_subreaper();
    match Watch::new().and_then(|mut watch| watch.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prevents the reuse of a process group's id, until its warden ends or kills the group.
pub(crate) fn leader() -> ExitCode {
    catch_signals();
    // No data is ever written: the end of the stream means that the warden has ended.
    io::stdin().read_to_end(&mut Vec::new()).ok();
    ExitCode::SUCCESS
}

/// Catches all signals that can be caught and are not ignored. In a program that is started, a caught signal has its default effect, and
/// an ignored one stays ignored.
fn catch_signals() {
    let is_ignored = signals::ignored();
    for signal in
        (1..=64).filter(|signal| !signal_hook::consts::FORBIDDEN.contains(signal) && !is_ignored(*signal))
    {
        // It fails for numbers that are not signals. The flag is never read.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).ok();
    }
}

struct Watch {
    inbox: Inbox,
    outbox: Vec<u8>,
    /// Readable when a child has ended or was stopped.
    children: UnixStream,
    timer: Timer,
    /// Standard input, output and error of the command, until it is started.
    streams: Vec<OwnedFd>,
    arguments: Vec<OsString>,
    /// The command, if this process is its parent. It is not reaped before polylock is done with it, so that its pid and the id of its
    /// group are not reused.
    command: Option<Pid>,
    has_ended: bool,
    leader: Option<Child>,
    tree: ProcessTree,
    deadline: Moment,
    /// True if the deadline has passed once.
    has_expired: bool,
    /// The time at which the connection to polylock was found closed.
    abandoned: Option<Moment>,
    is_done: bool,
    /// The processes that can't be killed, with their users.
    refused: HashMap<Pid, Option<u32>>,
    /// The standard error of the command, for reports when polylock is dead.
    stderr: Option<File>,
}

impl Watch {
    fn new() -> io::Result<Self> {
        let (children, signalled) = UnixStream::pair()?;
        children.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, signalled)?;
        Ok(Self {
            inbox: Inbox::default(),
            outbox: Vec::new(),
            children,
            timer: Timer::new()?,
            streams: Vec::new(),
            arguments: Vec::new(),
            command: None,
            has_ended: false,
            leader: None,
            tree: ProcessTree::default(),
            deadline: Moment::NEVER,
            has_expired: false,
            abandoned: None,
            is_done: false,
            refused: HashMap::new(),
            stderr: None,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            // This precedes the comparison of the deadline: after a pause of both processes, a later deadline may be waiting in the
            // socket.
            let received = self.receive();
            if self.is_done {
                self.reap_children();
                return Ok(());
            }
            if received.is_err() && self.abandoned.is_none() {
                // Without a connection the deadline can't be extended.
                self.abandoned = Some(SystemClock.now());
            }
            self.handle_children();
            let next_kill = if self.abandoned.is_some() || SystemClock.now() >= self.deadline {
                self.kill()
            } else {
                None
            };
            if self.abandoned.is_some() && next_kill.is_none() {
                self.reap_children();
                self.report_on_stderr();
                return Ok(());
            }
            self.flush();
            self.wait(next_kill)?;
        }
    }

    /// Reads and executes all orders that have arrived.
    fn receive(&mut self) -> io::Result<()> {
        while self.abandoned.is_none() {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(io::stdin(), into, &mut control, RecvFlags::DONTWAIT);
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    self.streams.extend(descriptors);
                }
            }
            for descriptor in &self.streams {
                // There is no other thread that could start a program before this.
                fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
            }
            match received.map(|received| received.bytes) {
                Ok(0) => self.abandoned = Some(SystemClock.now()),
                Ok(number) => self.inbox.add(&bytes[..number]),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            while let Some(line) = self.inbox.line() {
                if let Some(order) = Order::from_line(&line) {
                    self.execute(order);
                }
            }
        }
        Ok(())
    }

    fn execute(&mut self, order: Order) {
        match order {
            Order::Argument(argument) => self.arguments.push(argument),
            Order::Start(command_group) => {
                let event = match self.start(command_group) {
                    Ok(command) => {
                        Event::Started { command, leader: self.leader.as_ref().map(Pid::from_child) }
                    }
                    Err(error) => Event::Failed(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())),
                };
                self.report(event);
            }
            Order::Adopt(adopted) => self.adopt(adopted),
            Order::Deadline(at) => self.deadline = at,
            Order::Search { sent } => {
                let refused = self.tree.refresh();
                self.report_refused(&refused);
                // The duration includes the delay of this process itself: its kill at the deadline is delayed in the same way.
                self.report(Event::SearchTook(SystemClock.now().since(sent)));
            }
            Order::Done => self.is_done = true,
        }
    }

    /// Starts the command. It leads no process group, so that it can start a session of its own, as a command of a script can.
    fn start(&mut self, command_group: CommandGroup) -> io::Result<Pid> {
        let (Some((program, arguments)), Ok([stdin, stdout, stderr])) =
            (self.arguments.split_first(), <[OwnedFd; 3]>::try_from(std::mem::take(&mut self.streams)))
        else {
            return Err(Errno::INVAL.into());
        };
        if SystemClock.now() >= self.deadline {
            return Err(Errno::TIMEDOUT.into());
        }
        self.stderr = stderr.try_clone().ok().map(File::from);
        let mut command = Command::new(program);
        command.args(arguments);
        add_this_warden(&mut command);
        match command_group {
            CommandGroup::New => {
                let leader = Command::new(this_program()?)
                    .arg(LEADER)
                    .process_group(0)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()?;
                command.process_group(Pid::from_child(self.leader.insert(leader)).as_raw_nonzero().get());
            }
            CommandGroup::Existing(group) => {
                command.process_group(group.as_raw_nonzero().get());
            }
            CommandGroup::Inherited => {}
        }
        let command = Pid::from_child(&command.stdin(stdin).stdout(stdout).stderr(stderr).spawn()?);
        self.command = Some(command);
        self.tree.ancestors = vec![Ancestor::This];
        self.tree.command = Process::open(command);
        if let Some(leader) = &self.leader {
            let leader = Pid::from_child(leader);
            self.tree.excluded = vec![leader];
            self.tree.group = Some(Group::unreaped(leader));
        }
        Ok(command)
    }

    /// Adopts a command that is polylock's child since its own warden was killed.
    fn adopt(&mut self, Adopted { parent, group, members }: Adopted) {
        self.stderr = self.streams.drain(..).next_back().map(File::from);
        if let Some((command, started)) = members.first() {
            let process = Process::open(*command);
            // The process is opened before the start time is compared, so that the time is that of the opened process.
            self.tree.command =
                process.filter(|_| Stat::of(*command).is_some_and(|stat| stat.started == *started));
        }
        self.tree.excluded = members.iter().skip(1).map(|(leader, _)| *leader).collect();
        self.tree.ancestors = parent.map(Ancestor::Parent).into_iter().collect();
        self.tree.group = group.map(|group| Group::while_member(group, members));
        let refused = self.tree.refresh();
        self.report_refused(&refused);
    }

    /// Reports events of the command, and reaps orphans: processes of the command with parents that have ended.
    fn handle_children(&mut self) {
        let mut signals = [0; 64];
        if !matches!((&self.children).read(&mut signals), Ok(1..)) {
            return;
        }
        if let Some(command) = self.command.filter(|_| !self.has_ended) {
            let of_command =
                |options| waitid(WaitId::Pid(command), options | WaitIdOptions::NOHANG).ok().flatten();
            if let Some(signal) =
                of_command(WaitIdOptions::STOPPED).and_then(|status| status.stopping_signal())
            {
                self.report(Event::Stopped(signal));
            }
            if let Some(status) = of_command(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                let killed = status.terminating_signal().map(Event::Killed);
                let event = killed.or(status.exit_status().map(Event::Exited));
                self.report(event.unwrap_or(Event::Exited(i32::from(u8::MAX))));
                self.has_ended = true;
            }
        }
        let kept = [self.command, self.leader.as_ref().map(Pid::from_child)];
        for orphan in children().into_iter().filter(|child| !kept.contains(&Some(*child))) {
            waitpid(Some(orphan), WaitOptions::NOHANG).ok();
        }
    }

    /// Kills all processes of the command. Returns the time of the next kill, if some are left.
    fn kill(&mut self) -> Option<Moment> {
        let now = SystemClock.now();
        let remaining = self.tree.kill();
        if !std::mem::replace(&mut self.has_expired, true) {
            self.report(Event::Expired);
        }
        self.report_refused(&remaining.refused);
        let gives_up =
            self.abandoned.is_some_and(|since| remaining.dying.is_empty() || now >= since + KILL_TIMEOUT);
        if remaining.is_empty() || gives_up {
            self.deadline = Moment::NEVER;
            return None;
        }
        Some(now + if remaining.dying.is_empty() { REFUSED_INTERVAL } else { DYING_INTERVAL })
    }

    fn report_refused(&mut self, refused: &[Process]) {
        for process in refused {
            let (process, user) = (process.id(), process.user());
            if self.refused.insert(process, user).is_none() {
                self.report(Event::Refused { process, user });
            }
        }
    }

    /// Reports processes that could not be killed on the standard error of the command, in place of a dead polylock.
    fn report_on_stderr(&mut self) {
        let alive = |process: &Pid| !Process::open(*process).is_none_or(|process| process.has_ended());
        let mut refused = self.refused.iter().filter(|(process, _)| alive(process));
        if let (Some((process, user)), Some(stderr)) = (refused.next(), &mut self.stderr) {
            // This is the last step of the process, so it may block.
            let process = unkillable(*process, *user);
            writeln!(
                stderr,
                "polylock: {process}; the next holder of the lock may run beside it: kill it as that user"
            )
            .ok();
        }
    }

    fn report(&mut self, event: Event) {
        if self.outbox.len() < MAX_UNSENT || !matches!(event, Event::SearchTook(_) | Event::Stopped(_)) {
            self.outbox.extend_from_slice(event.to_line().as_bytes());
        }
    }

    /// Sends events without blocking.
    fn flush(&mut self) {
        while !self.outbox.is_empty() {
            match send(io::stdin(), &self.outbox, SendFlags::DONTWAIT) {
                Ok(number) => drop(self.outbox.drain(..number)),
                Err(Errno::INTR) => {}
                // They are sent later, unless the connection is closed, which the next receive detects.
                Err(_) => return,
            }
        }
    }

    /// Reaps the command and the leader of its group.
    fn reap_children(&mut self) {
        if let Some(command) = self.command {
            waitpid(Some(command), WaitOptions::NOHANG).ok();
        }
        if let Some(mut leader) = self.leader.take() {
            leader.kill().ok();
            leader.wait().ok();
        }
    }

    /// Waits for an order, a child, the deadline, or until `next_kill`.
    fn wait(&self, next_kill: Option<Moment>) -> io::Result<()> {
        let stdin = io::stdin();
        let socket = PollFlags::IN | if self.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let mut fds = vec![PollFd::new(&self.children, PollFlags::IN)];
        if self.abandoned.is_none() {
            fds.push(PollFd::new(&stdin, socket));
        }
        self.timer.wait(fds, next_kill.unwrap_or(self.deadline))
    }
}

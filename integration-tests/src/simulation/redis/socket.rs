//! The connections between processes and servers, and the record of the calls that were sent on them.
//!
//! Each direction delivers bytes in order and late. A connection that loses bytes delivers nothing more in that direction, and ends a while
//! later. Bytes that were written before a connection is closed are delivered.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, Weak},
    task::{Context, Poll, Waker},
};

use fastrand::Rng;
use polylock_core::sync::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::resp::{Command, take_command};
use crate::simulation::{
    network::{Network, Way, nanos},
    plan::between,
    time::Time,
};

/// The longest time after which both ends of a connection that has lost bytes end, in milliseconds.
const LONGEST_BROKEN_MS: u64 = 3000;

/// The server's end of connections.
pub trait Acceptor: Send + Sync {
    /// Returns the number of the server.
    fn number(&self) -> usize;

    /// Receives a part of the traffic of `connection`.
    fn receive(&self, connection: &Arc<Connection>, segment: &Segment);
}

/// A connection.
pub struct Connection {
    /// Its number in the run.
    pub number: u64,
    /// The process at one end.
    pub process: usize,
    link: usize,
    wires: Arc<Wires>,
    server: Weak<dyn Acceptor>,
    state: Mutex<State>,
}

/// The network of a run, and the calls of scripts that were sent in it.
#[derive(Debug)]
pub struct Wires {
    time: Arc<Time>,
    network: Arc<Network>,
    calls: Mutex<BTreeSet<SentCall>>,
}

/// A call of a script that was sent, whether or not it has arrived.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SentCall {
    /// The server.
    pub server: usize,
    /// The checksum of the script.
    pub script: Vec<u8>,
    /// The first argument after the keys.
    pub argument: Vec<u8>,
}

impl Wires {
    /// Returns `network` without calls.
    #[must_use]
    pub fn new(time: Arc<Time>, network: Arc<Network>) -> Arc<Self> {
        Arc::new(Self { time, network, calls: Mutex::default() })
    }

    /// Returns the calls that were sent.
    #[must_use]
    pub fn calls(&self) -> BTreeSet<SentCall> {
        lock(&self.calls).clone()
    }

    fn record(&self, server: usize, command: &Command) {
        let [name, script, keys, rest @ ..] = &command[..] else { return };
        let keys: Option<usize> = std::str::from_utf8(keys).ok().and_then(|keys| keys.parse().ok());
        let argument = keys.and_then(|keys| rest.get(keys));
        if let (b"EVALSHA", Some(argument)) = (&name[..], argument) {
            let (script, argument) = (script.clone(), argument.clone());
            lock(&self.calls).insert(SentCall { server, script, argument });
        }
    }
}

struct State {
    random: Rng,
    /// The bytes of a command that was not sent completely.
    sent: Vec<u8>,
    /// The directions, by [`Way`].
    ways: [Line; 2],
    /// True if the server has accepted it.
    is_open: bool,
    /// True at the process's end if the other end has closed it, or it is broken.
    has_ended: bool,
    /// True if the process has closed it or has crashed.
    is_closed: bool,
    received: VecDeque<u8>,
    reader: Option<Waker>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// The arrival time of the last segment.
    last: u64,
    is_broken: bool,
}

/// A part of the traffic in one direction.
#[derive(Debug)]
pub enum Segment {
    /// The connection is opened, or accepted.
    Open,
    /// Bytes.
    Data(Vec<u8>),
    /// The connection is closed or refused.
    Close,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Connection {
    /// Begins to open a connection of `process` to `server` on `link` of the network.
    #[must_use]
    pub fn open(
        number: u64,
        process: usize,
        server: Weak<dyn Acceptor>,
        link: usize,
        wires: Arc<Wires>,
        random: Rng,
    ) -> Socket {
        let state = State {
            random,
            sent: Vec::new(),
            ways: [Line::default(); 2],
            is_open: false,
            has_ended: false,
            is_closed: false,
            received: VecDeque::new(),
            reader: None,
        };
        let connection = Arc::new(Self { number, process, link, wires, server, state: Mutex::new(state) });
        connection.send(Way::There, Segment::Open);
        Socket(connection)
    }

    /// Sends a segment: to the server or back.
    pub fn send(self: &Arc<Self>, way: Way, segment: Segment) {
        let mut state = self.lock();
        let line = &mut state.ways[way as usize];
        if line.is_broken {
            return;
        }
        let connection = self.clone();
        let time = &self.wires.time;
        if let Some(at) = self.wires.network.arrival(self.link, way) {
            line.last = at.max(line.last + 1);
            return time.at(line.last, move || connection.arrive(way, segment));
        }
        line.is_broken = true;
        let noticed = nanos(between(&mut state.random, 0..LONGEST_BROKEN_MS));
        time.at(time.now() + noticed, move || connection.break_up());
    }

    fn arrive(self: &Arc<Self>, way: Way, segment: Segment) {
        if let Way::There = way {
            return self.server.upgrade().into_iter().for_each(|server| server.receive(self, &segment));
        }
        let mut state = self.lock();
        match segment {
            Segment::Open => state.is_open = true,
            Segment::Data(bytes) => state.received.extend(bytes),
            Segment::Close => state.has_ended = true,
        }
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Ends the connection at both ends.
    fn break_up(self: &Arc<Self>) {
        self.arrive(Way::There, Segment::Close);
        self.arrive(Way::Back, Segment::Close);
    }

    /// Ends the connection because its process has crashed. The server is notified, or is not.
    pub fn end_process(self: &Arc<Self>) {
        let is_notified = {
            let mut state = self.lock();
            !std::mem::replace(&mut state.is_closed, true) && state.random.bool()
        };
        if is_notified {
            self.send(Way::There, Segment::Close);
        }
    }

    /// Records the calls that are complete with these `bytes`.
    fn record(&self, bytes: &[u8]) {
        let Some(server) = self.server.upgrade() else { return };
        let mut state = self.lock();
        state.sent.extend(bytes);
        while let Some(command) = take_command(&mut state.sent) {
            self.wires.record(server.number(), &command);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The process's end of a connection.
#[derive(Debug)]
pub struct Socket(Arc<Connection>);

impl Socket {
    /// Returns the connection.
    #[must_use]
    pub const fn connection(&self) -> &Arc<Connection> {
        &self.0
    }

    /// Waits until the server has accepted the connection.
    ///
    /// # Errors
    /// If it is refused.
    pub async fn accepted(self) -> io::Result<Self> {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if state.is_open || state.has_ended {
                return Poll::Ready(());
            }
            state.reader = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        if self.0.lock().is_open { Ok(self) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        if state.received.is_empty() && !state.has_ended {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = buffer.remaining().min(state.received.len());
        let bytes: Vec<u8> = state.received.drain(..count).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.0.lock().has_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.0.record(bytes);
        self.0.send(Way::There, Segment::Data(bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.0.lock().is_closed, true) {
            self.0.send(Way::There, Segment::Close);
        }
    }
}

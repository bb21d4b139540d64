//! The connections between processes and servers.
//!
//! Each direction delivers bytes in order and late. A connection that loses bytes delivers nothing more in that direction, and ends a while
//! later. Bytes that were written before a connection is closed are delivered.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    io,
    ops::Range,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use fastrand::Rng;
use polylock_core::{
    simulation::{Connecting, Stream},
    sync::lock,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    network::{Network, Way, nanos},
    plan::{PROCESSES, between, stream},
    servers::Life,
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

    /// Records the calls that are complete in `sent`, the bytes that a process has sent, and removes them.
    fn record(&self, connection: &Connection, sent: &mut Vec<u8>);
}

/// A connection.
pub struct Connection {
    /// Its number in the run.
    pub number: u64,
    /// The process at one end, in its life.
    pub process: Life,
    link: usize,
    wires: Arc<Wires>,
    server: Weak<dyn Acceptor>,
    state: Mutex<State>,
}

/// The network of a run, and its connections.
#[derive(Debug)]
pub struct Wires {
    seed: u64,
    time: Arc<Time>,
    network: Arc<Network>,
    /// The time for which the machines send bytes again, in nanoseconds.
    longest_delay: u64,
    /// The number of connections.
    connected: AtomicU64,
    connections: Mutex<Vec<Weak<Connection>>>,
    /// The attempts to connect: the process, the server, and the time.
    attempts: Mutex<Vec<(usize, usize, u64)>>,
}

impl Wires {
    /// Returns `network` without connections. Bytes that would arrive later than `longest_delay` after they were sent are lost.
    #[must_use]
    pub fn new(seed: u64, time: Arc<Time>, network: Arc<Network>, longest_delay: u64) -> Arc<Self> {
        Arc::new(Self {
            seed,
            time,
            network,
            longest_delay,
            connected: AtomicU64::new(0),
            connections: Mutex::default(),
            attempts: Mutex::default(),
        })
    }

    /// Opens a connection of `process` to the one of `servers` that `address` names.
    pub fn connect<A: Acceptor + 'static>(
        self: &Arc<Self>,
        process: Life,
        address: &str,
        servers: &[Arc<A>],
    ) -> Connecting {
        let number = address.strip_prefix('n').and_then(|it| it.split(':').next()?.parse::<usize>().ok());
        let Some(server) = number.and_then(|number| servers.get(number)) else {
            let error = io::Error::other(format!("no server at {address}"));
            return Box::pin(async { Err(error) });
        };
        let number = self.connected.fetch_add(1, Ordering::Relaxed);
        let end = Arc::downgrade(server) as Weak<dyn Acceptor>;
        let socket = Connection::open(number, process, (end, server.number()), self.clone());
        lock(&self.attempts).push((process.0, server.number(), self.time.now()));
        let connections = &mut lock(&self.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(&socket.0));
        Box::pin(async { Ok(Box::new(socket.accepted().await?) as Box<dyn Stream>) })
    }

    /// Ends the connections of a process that has crashed.
    pub fn end_process(&self, process: usize) {
        self.of_process(process).iter().for_each(Connection::end_process);
    }

    /// Stops the connections that a process has to a server: some are late until `until`, the others deliver nothing more.
    pub fn stick(&self, process: usize, server: usize, until: u64) {
        let connections = self.of_process(process);
        let link = server * PROCESSES + process;
        connections.iter().filter(|it| it.link == link).for_each(|connection| connection.stick(until));
    }

    fn of_process(&self, process: usize) -> Vec<Arc<Connection>> {
        let connections = lock(&self.connections);
        connections.iter().filter_map(Weak::upgrade).filter(|it| it.process.0 == process).collect()
    }

    /// Returns true if a process has tried to connect to a server in this time.
    #[must_use]
    pub fn has_connected(&self, process: usize, server: usize, window: &Range<u64>) -> bool {
        let is_it =
            |(by, to, at): &(usize, usize, u64)| (*by, *to) == (process, server) && window.contains(at);
        lock(&self.attempts).iter().any(is_it)
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
    /// What is sent before this time arrives after it.
    stuck_until: u64,
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
#[derive(Debug, Clone)]
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
    /// Begins to open a connection of `process` to a server.
    fn open(
        number: u64,
        process: Life,
        (server, server_number): (Weak<dyn Acceptor>, usize),
        wires: Arc<Wires>,
    ) -> Socket {
        let link = server_number * PROCESSES + process.0;
        let state = State {
            random: stream(wires.seed, &[10, number]),
            sent: Vec::new(),
            ways: [Line::default(); 2],
            is_open: false,
            has_ended: false,
            is_closed: false,
            stuck_until: 0,
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
        let stuck_until = state.stuck_until;
        let line = &mut state.ways[way as usize];
        if line.is_broken {
            return;
        }
        let connection = self.clone();
        let time = &self.wires.time;
        let arrival = self.wires.network.arrival(self.link, way);
        if let Some(at) = arrival.filter(|at| at.saturating_sub(time.now()) <= self.wires.longest_delay) {
            line.last = at.max(line.last + 1).max(stuck_until);
            return time.at(line.last, move || connection.arrive(way, segment));
        }
        line.is_broken = true;
        let noticed = nanos(between(&mut state.random, 0..LONGEST_BROKEN_MS));
        time.at(time.now() + noticed, move || connection.break_up());
    }

    /// Stops the connection: what is sent from now on arrives after `until`, or does not arrive.
    fn stick(&self, until: u64) {
        let mut state = self.lock();
        if state.random.u8(..3) > 0 {
            state.stuck_until = until;
        } else {
            state.ways.iter_mut().for_each(|line| line.is_broken = true);
        }
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
        server.record(self, &mut state.sent);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The process's end of a connection.
#[derive(Debug)]
pub struct Socket(Arc<Connection>);

impl Socket {
    /// Waits until the server has accepted the connection.
    async fn accepted(self) -> io::Result<Self> {
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

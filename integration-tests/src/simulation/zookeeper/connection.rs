//! The connections between processes and servers. Each direction delivers messages in order and late. A connection that loses a message
//! delivers nothing more in that direction, and ends a while later.

use std::{
    fmt,
    sync::{Arc, Mutex, Weak},
};

use fastrand::Rng;
use polylock_core::sync::lock;
use polylock_zookeeper::{
    simulation::{Change, Request},
    zookeeper_client::{Error, EventType, Stat},
};
use tokio::sync::mpsc::UnboundedSender;

use crate::simulation::{
    network::{Network, Way, nanos},
    plan::between,
    time::Time,
};

/// The longest time after which both ends of a connection that has lost a message end, in milliseconds.
const LONGEST_BROKEN_MS: u64 = 3000;

/// A message to a server.
#[derive(Debug, Clone)]
pub enum ToServer {
    /// Opens a session, or continues one.
    Open(Open),
    /// A request, with its number in the connection.
    Request(u64, Request),
    /// Keeps the session alive.
    Ping,
    /// Closes the session.
    CloseSession,
    /// The connection has ended.
    Close,
}

/// The first message on a connection.
#[derive(Debug, Clone)]
pub struct Open {
    /// The session that continues, or `None`.
    pub session: Option<i64>,
    /// The session timeout, in nanoseconds.
    pub timeout: u64,
    /// The last transaction that the client has seen.
    pub zxid: i64,
    /// The nodes that the session watches, and whether that node existed.
    pub watches: Vec<(String, bool)>,
}

/// A message to a client.
#[derive(Debug, Clone)]
pub enum ToClient {
    /// The session is open.
    Opened(i64),
    /// The session has ended.
    Expired,
    /// The reply to a request, with the last transaction of the server.
    Reply(u64, i64, Result<Answer, Error>),
    /// The reply to a ping.
    Pong,
    /// A change of a node that is watched.
    Event(EventType, String),
    /// The connection has ended.
    Closed,
}

/// The reply to a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The state of a node.
    State(Option<Stat>),
    /// The data of a node.
    Data(Vec<u8>, Stat),
    /// The data of several nodes.
    All(Vec<Result<(Vec<u8>, Stat), Error>>),
    /// The children of a node.
    Children(Vec<String>),
    /// A created node, and its sequence.
    Created(Stat, i64),
    /// The request was carried out.
    Done,
    /// The change with this index was refused.
    Refused(usize, Error),
}

/// Returns true for a request that needs the leader though it changes nothing.
#[must_use]
pub fn changes_nothing(request: &Request) -> bool {
    match request {
        Request::Sync => true,
        Request::Transaction(changes) => changes.iter().all(|change| matches!(change, Change::Exists(_))),
        _ => false,
    }
}

/// The server's end of connections.
pub trait Acceptor: Send + Sync {
    /// Receives a message on `connection`.
    fn receive(&self, connection: &Arc<Connection>, message: ToServer);
}

/// A connection.
pub struct Connection {
    /// Its number in the run.
    pub number: u64,
    /// The process at one end.
    pub process: usize,
    /// The server at the other end.
    pub server: usize,
    link: usize,
    time: Arc<Time>,
    network: Arc<Network>,
    acceptor: Weak<dyn Acceptor>,
    inbox: UnboundedSender<ToClient>,
    state: Mutex<State>,
}

struct State {
    random: Rng,
    /// The directions, by [`Way`].
    ways: [Line; 2],
    /// True if the process has closed it or has crashed.
    is_closed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// The arrival time of the last message.
    last: u64,
    is_broken: bool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Connection {
    /// Creates a connection of `process` to `server`, on `link` of the network. It is closed when the process's end is dropped.
    #[must_use]
    pub fn open(
        (number, process, server, link): (u64, usize, usize, usize),
        (time, network): (Arc<Time>, Arc<Network>),
        acceptor: Weak<dyn Acceptor>,
        inbox: UnboundedSender<ToClient>,
        random: Rng,
    ) -> ClientEnd {
        let state = Mutex::new(State { random, ways: [Line::default(); 2], is_closed: false });
        ClientEnd(Arc::new(Self { number, process, server, link, time, network, acceptor, inbox, state }))
    }

    /// Sends a message to the client.
    pub fn reply(self: &Arc<Self>, message: ToClient) {
        let connection = self.clone();
        self.send(Way::Back, move || drop(connection.inbox.send(message)));
    }

    fn send_to_server(self: &Arc<Self>, message: ToServer) {
        let connection = self.clone();
        self.send(Way::There, move || connection.arrive(message));
    }

    fn arrive(self: &Arc<Self>, message: ToServer) {
        if let Some(acceptor) = self.acceptor.upgrade() {
            acceptor.receive(self, message);
        }
    }

    fn send(self: &Arc<Self>, way: Way, deliver: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        let line = &mut state.ways[way as usize];
        if line.is_broken {
            return;
        }
        if let Some(at) = self.network.arrival(self.link, way) {
            line.last = at.max(line.last + 1);
            return self.time.at(line.last, deliver);
        }
        line.is_broken = true;
        let noticed = nanos(between(&mut state.random, 0..LONGEST_BROKEN_MS));
        let connection = self.clone();
        self.time.at(self.time.now() + noticed, move || {
            connection.arrive(ToServer::Close);
            drop(connection.inbox.send(ToClient::Closed));
        });
    }

    /// Ends the connection because its process has crashed. The server is notified, or is not.
    pub fn end_process(self: &Arc<Self>) {
        let is_notified = {
            let mut state = lock(&self.state);
            !std::mem::replace(&mut state.is_closed, true) && state.random.bool()
        };
        if is_notified {
            self.send_to_server(ToServer::Close);
        }
    }
}

/// The process's end of a connection.
#[derive(Debug)]
pub struct ClientEnd(Arc<Connection>);

impl ClientEnd {
    /// Returns the connection.
    #[must_use]
    pub const fn connection(&self) -> &Arc<Connection> {
        &self.0
    }

    /// Sends a message.
    pub fn send(&self, message: ToServer) {
        self.0.send_to_server(message);
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        if !std::mem::replace(&mut lock(&self.0.state).is_closed, true) {
            self.0.send_to_server(ToServer::Close);
        }
    }
}

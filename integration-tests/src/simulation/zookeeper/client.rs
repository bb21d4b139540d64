//! The client of a session, with the rules of the driver: requests wait for a connection, those in flight fail with it, watches are set
//! again on the next one, and the session is given up after 1.4 times its timeout.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use futures_util::future::BoxFuture;
use polylock_core::{Clock, Executor, Moment, SystemClock, sync::lock};
use polylock_zookeeper::{
    simulation::{self, Change, Reply, Request, Session, Watch},
    zookeeper_client::{Error, EventType, SessionState, WatchedEvent},
};
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot, watch,
};

use super::{
    connection::{Answer, ClientEnd, Open, ToClient, ToServer},
    tree::parent,
};
use crate::simulation::{network::nanos, plan::Planted};

/// The ensemble behind the network.
pub trait Servers: fmt::Debug + Send + Sync {
    /// Returns the number of servers.
    fn count(&self) -> usize;

    /// Begins to open a connection from a process to a server, which sends to `inbox`.
    fn connect(&self, process: usize, server: usize, inbox: UnboundedSender<ToClient>) -> ClientEnd;
}

/// The ensemble as one process uses it.
#[derive(Debug)]
pub struct Gate {
    /// The ensemble.
    pub servers: Arc<dyn Servers>,
    /// The process.
    pub process: usize,
    /// The order in which servers are tried.
    pub random: Mutex<Rng>,
    /// The bug in the client.
    pub planted: Option<Planted>,
}

impl simulation::Ensemble for Gate {
    fn connect(
        &self,
        timeout: Duration,
        silence: Duration,
    ) -> BoxFuture<'static, Result<Arc<dyn Session>, Error>> {
        let (sender, requests) = unbounded_channel();
        let (states, state) = watch::channel(SessionState::SyncConnected);
        let now = SystemClock.now();
        let driver = Driver {
            servers: self.servers.clone(),
            process: self.process,
            random: lock(&self.random).fork(),
            planted: self.planted,
            timeout,
            tick: if silence > timeout * 3 / 5 { timeout / 20 } else { silence / 8 },
            session: None,
            zxid: 0,
            received: now,
            sent: now,
            is_pinging: false,
            requests,
            in_flight: VecDeque::new(),
            number: 0,
            watchers: Vec::new(),
            states,
            hidden: BTreeSet::new(),
            watched: BTreeSet::new(),
        };
        Box::pin(driver.open(sender, state))
    }
}

type Responder = oneshot::Sender<Result<Reply, Error>>;
type Connected = (ClientEnd, UnboundedReceiver<ToClient>);

/// The reason why there is no connection.
enum Failure {
    Lost,
    Expired,
}

struct Driver {
    servers: Arc<dyn Servers>,
    process: usize,
    random: Rng,
    planted: Option<Planted>,
    /// The session timeout.
    timeout: Duration,
    /// An eighth of the longest silence of a server.
    tick: Duration,
    session: Option<i64>,
    /// The last transaction that a reply has shown.
    zxid: i64,
    /// The times of the last message in each direction.
    received: Moment,
    sent: Moment,
    is_pinging: bool,
    requests: UnboundedReceiver<(Request, Responder)>,
    in_flight: VecDeque<(u64, Request, Responder)>,
    /// The number of the last request.
    number: u64,
    watchers: Vec<Watcher>,
    states: watch::Sender<SessionState>,
    /// For planted bugs: creates with lost replies, and watched nodes.
    hidden: BTreeSet<String>,
    watched: BTreeSet<String>,
}

struct Watcher {
    path: String,
    existed: bool,
    sender: oneshot::Sender<WatchedEvent>,
}

impl Driver {
    async fn open(
        mut self,
        requests: UnboundedSender<(Request, Responder)>,
        states: watch::Receiver<SessionState>,
    ) -> Result<Arc<dyn Session>, Error> {
        for server in self.shuffled() {
            if let Ok(connected) = self.attempt(server).await {
                let (id, timeout) = (self.session.unwrap_or(0), self.timeout);
                Executor::current().spawn(self.serve(connected));
                return Ok(Arc::new(OpenSession { id, timeout, requests, states }));
            }
        }
        Err(Error::NoHosts)
    }

    fn shuffled(&mut self) -> Vec<usize> {
        let mut servers: Vec<_> = (0..self.servers.count()).collect();
        self.random.shuffle(&mut servers);
        servers
    }

    /// Opens a connection, and opens or continues the session on it.
    async fn attempt(&mut self, server: usize) -> Result<Connected, Failure> {
        let (inbox, mut messages) = unbounded_channel();
        let connection = self.servers.connect(self.process, server, inbox);
        self.received = SystemClock.now();
        self.sent = self.received;
        self.is_pinging = false;
        self.watchers.retain(|watcher| !watcher.sender.is_closed());
        connection.send(ToServer::Open(Open {
            session: self.session,
            timeout: nanos(self.timeout),
            zxid: self.zxid,
            watches: self.watchers.iter().map(|watcher| (watcher.path.clone(), watcher.existed)).collect(),
        }));
        match SystemClock.before(self.received + 8 * self.tick, messages.recv()).await {
            Some(Some(ToClient::Opened(session))) => {
                (self.session, self.received) = (Some(session), SystemClock.now());
                Ok((connection, messages))
            }
            Some(Some(ToClient::Expired)) => Err(Failure::Expired),
            _ => Err(Failure::Lost),
        }
    }

    /// Serves the session until it has ended.
    async fn serve(mut self, mut connected: Connected) {
        let state = loop {
            if let Some(state) = self.serve_connection(&mut connected).await {
                break state;
            }
            drop(connected);
            self.states.send_replace(SessionState::Disconnected);
            self.fail_in_flight();
            connected = match self.reconnect().await {
                Some(connected) => connected,
                None => break SessionState::Expired,
            };
            self.states.send_replace(SessionState::SyncConnected);
        };
        self.end(state);
    }

    /// Serves the session until the connection has ended. Returns the state if the session has ended, too.
    async fn serve_connection(&mut self, (connection, messages): &mut Connected) -> Option<SessionState> {
        let (mut is_closing, mut next_tick) = (false, SystemClock.now() + self.tick);
        loop {
            tokio::select! {
                biased;
                message = messages.recv() => match message {
                    Some(ToClient::Expired) => return Some(SessionState::Expired),
                    None | Some(ToClient::Closed | ToClient::Opened(_)) => {
                        return is_closing.then_some(SessionState::Closed);
                    }
                    Some(message) => {
                        self.received = SystemClock.now();
                        if let Some(state) = self.receive(message) {
                            return Some(state);
                        }
                    }
                },
                request = self.requests.recv(), if !is_closing => match request {
                    Some((request, responder)) => self.send(connection, request, responder),
                    None => {
                        is_closing = true;
                        connection.send(ToServer::CloseSession);
                    }
                },
                () = SystemClock.sleep_until(next_tick) => {
                    let now = SystemClock.now();
                    next_tick = now + self.tick;
                    if now >= self.received + 8 * self.tick {
                        return None;
                    }
                    if !self.is_pinging && now >= self.sent + 3 * self.tick {
                        (self.is_pinging, self.sent) = (true, now);
                        connection.send(ToServer::Ping);
                    }
                }
            }
        }
    }

    fn send(&mut self, connection: &ClientEnd, request: Request, responder: Responder) {
        self.number += 1;
        self.sent = SystemClock.now();
        connection.send(ToServer::Request(self.number, request.clone()));
        self.in_flight.push_back((self.number, request, responder));
    }

    /// Handles a message. Returns the state if the session has ended.
    fn receive(&mut self, message: ToClient) -> Option<SessionState> {
        match message {
            ToClient::Pong => self.is_pinging = false,
            ToClient::Event(event, path) => self.notify(event, &path),
            ToClient::Reply(_, _, Err(Error::SessionExpired)) => return Some(SessionState::Expired),
            ToClient::Reply(number, zxid, answer) => {
                self.zxid = self.zxid.max(zxid);
                let position = self.in_flight.iter().position(|(other, ..)| *other == number);
                let (_, request, responder) = position.and_then(|at| self.in_flight.remove(at))?;
                let reply = answer.map(|answer| self.reply(&request, answer));
                drop(responder.send(reply));
            }
            ToClient::Opened(_) | ToClient::Expired | ToClient::Closed => {}
        }
        None
    }

    fn reply(&mut self, request: &Request, answer: Answer) -> Reply {
        match (request, answer) {
            (Request::Check { path, watches }, Answer::State(stat)) => {
                Reply::State(stat, watches.then(|| self.watch(path, stat.is_some())))
            }
            (Request::Read { path, watches }, Answer::Data(data, stat)) => {
                Reply::Data(data, stat, watches.then(|| self.watch(path, true)))
            }
            (Request::ReadAll(_), Answer::All(read)) => Reply::All(read),
            (Request::List(path), Answer::Children(mut children)) => {
                children.retain(|name| {
                    !self.hidden.iter().any(|hidden| format!("{path}/{name}").starts_with(hidden))
                });
                Reply::Children(children)
            }
            (_, Answer::Created(stat, sequence)) => Reply::Created(stat, sequence),
            (_, Answer::Refused(index, error)) => Reply::Refused(index, error),
            _ => Reply::Done,
        }
    }

    fn watch(&mut self, path: &str, existed: bool) -> Watch {
        let (sender, receiver) = oneshot::channel();
        let path = match self.planted {
            Some(Planted::ZookeeperWrongPredecessor) => parent(path),
            Some(Planted::ZookeeperSecondWatch) if !self.watched.insert(path.to_owned()) => "/",
            _ => path,
        };
        self.watchers.push(Watcher { path: path.to_owned(), existed, sender });
        receiver
    }

    fn notify(&mut self, event: EventType, path: &str) {
        for watcher in self.watchers.extract_if(.., |watcher| watcher.path == path) {
            drop(watcher.sender.send(WatchedEvent::new(event, path)));
        }
    }

    /// Fails the requests in flight: whether or not they were carried out is unknown.
    fn fail_in_flight(&mut self) {
        for (_, request, responder) in std::mem::take(&mut self.in_flight) {
            if let (Some(Planted::ZookeeperHiddenNode), Request::Change(Change::Create { path, .. })) =
                (self.planted, &request)
            {
                self.hidden.insert(path.clone());
            }
            drop(responder.send(Err(Error::ConnectionLoss)));
        }
    }

    /// Continues the session on any server. Returns `None` if it has ended, or is given up.
    async fn reconnect(&mut self) -> Option<Connected> {
        let deadline = self.received + self.timeout * 7 / 5;
        let mut pause = Duration::ZERO;
        loop {
            for server in self.shuffled() {
                match self.attempt(server).await {
                    Ok(connected) => return Some(connected),
                    Err(Failure::Expired) => return None,
                    Err(Failure::Lost) => {}
                }
                if SystemClock.now() >= deadline {
                    return None;
                }
            }
            pause = (2 * pause).clamp(Duration::from_millis(100), Duration::from_secs(1));
            let jitter = Duration::from_millis(self.random.u64(..100));
            SystemClock.sleep_until(deadline.min(SystemClock.now() + pause + jitter)).await;
        }
    }

    /// Ends the session at this end.
    fn end(mut self, state: SessionState) {
        let error = || match state {
            SessionState::Expired => Error::SessionExpired,
            _ => Error::ClientClosed,
        };
        for watcher in self.watchers {
            drop(watcher.sender.send(WatchedEvent::new_session(state)));
        }
        self.states.send_replace(state);
        self.requests.close();
        for (_, _, responder) in self.in_flight {
            drop(responder.send(Err(error())));
        }
        while let Ok((_, responder)) = self.requests.try_recv() {
            drop(responder.send(Err(error())));
        }
    }
}

/// An open session. Dropping it closes the session.
#[derive(Debug)]
struct OpenSession {
    id: i64,
    timeout: Duration,
    requests: UnboundedSender<(Request, Responder)>,
    states: watch::Receiver<SessionState>,
}

impl Session for OpenSession {
    fn id(&self) -> i64 {
        self.id
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn states(&self) -> watch::Receiver<SessionState> {
        self.states.clone()
    }

    fn send(&self, request: Request) -> BoxFuture<'static, Result<Reply, Error>> {
        let (responder, reply) = oneshot::channel();
        let ended = match *self.states.borrow() {
            SessionState::Expired => Error::SessionExpired,
            _ => Error::ClientClosed,
        };
        let is_sent = self.requests.send((request, responder)).is_ok();
        Box::pin(async move {
            match reply.await {
                Ok(reply) => reply,
                Err(_) if is_sent => Err(Error::ClientClosed),
                Err(_) => Err(ended),
            }
        })
    }
}

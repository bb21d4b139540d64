//! A TCP proxy in front of a server, with faults that a test switches on and off at any moment.
//!
//! It runs on a thread of its own, so a test may block. A byte that the proxy reads after a switch has returned is treated
//! as the switch says.
//!
//! As in TCP, there is no byte behind a gap: a connection of which something was [swallowed](Flow::Swallow) passes nothing
//! more in that direction, whatever is switched later. New connections are well again.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use polylock_core::{Clock, Moment, SystemClock};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
};

use crate::clock::{self, PATIENCE, now};

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// Both directions.
pub const BOTH: [Way; 2] = [Way::ToServer, Way::ToClient];

/// What becomes of the bytes in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// They pass.
    #[default]
    Pass,
    /// They pass this much later.
    Delay(Duration),
    /// They are read and kept, the end of the connection too, and pass when this ends, though the sender be gone by then.
    Hold,
    /// They are not read: they wait in the system's buffers, and when these are full the sender must wait.
    Stall,
    /// They are lost, the end of the connection too: the other side never hears of it.
    Swallow,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By a reset.
    Reset,
    /// In good order, as if each side had closed it.
    Close,
}

/// What went through so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Those of them that are still there.
    pub open: u64,
    /// How often something came from a client: one for each request, if each waits for its answer.
    pub requests: u64,
    /// Bytes that went to the server.
    pub to_server: u64,
    /// Bytes that went to clients.
    pub to_client: u64,
    /// Replies that were [cut](Proxy::cut_reply_to).
    pub cut_replies: u64,
}

/// A proxy in front of one server. When it is dropped, all its connections end.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    switches: watch::Sender<Switches>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What is switched.
#[derive(Debug, Clone, Copy, Default)]
struct Switches {
    flows: [Flow; 2],
    /// For connections up to this number.
    earlier: [Option<(u64, Flow)>; 2],
    /// Connections up to this number end.
    cut: Option<(u64, End)>,
    refuses: bool,
    over: bool,
}

impl Switches {
    fn flow(&self, number: u64, way: Way) -> Flow {
        let earlier = self.earlier[way as usize].filter(|(last, _)| number <= *last);
        earlier.map_or(self.flows[way as usize], |(_, flow)| flow)
    }
}

#[derive(Debug, Default)]
struct Shared {
    listens: AtomicBool,
    connections: AtomicU64,
    open: Mutex<BTreeSet<u64>>,
    requests: AtomicU64,
    passed: [AtomicU64; 2],
    cut_replies: AtomicU64,
    /// What the request holds whose reply is to be cut.
    doomed: Mutex<Option<Vec<u8>>>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the reply to this request is to be cut; only once.
    fn dooms(&self, request: &[u8]) -> bool {
        let mut doomed = self.doomed.lock().unwrap_or_else(PoisonError::into_inner);
        let hit = doomed.as_ref().is_some_and(|part| {
            part.is_empty() || request.windows(part.len()).any(|window| window == part.as_slice())
        });
        if hit {
            *doomed = None;
        }
        hit
    }
}

impl Proxy {
    /// In front of what listens, now or later, at `server`.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        let shared = Arc::new(Shared::default());
        let (switches, mut seen) = watch::channel(Switches::default());
        let (say, address) = std::sync::mpsc::channel();
        let thread = thread::spawn({
            let shared = shared.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
                runtime.block_on(async {
                    // Keeps the port while nobody listens.
                    let bound = socket(([127, 0, 0, 1], 0).into()).and_then(|socket| {
                        let address = socket.local_addr()?;
                        Ok((socket, address))
                    });
                    let (_reserved, address) = bound.unwrap_or_else(|error| panic!("no free port: {error}"));
                    serve(address, server, &mut seen, &shared, || say.send(address).unwrap_or_default())
                        .await;
                });
            }
        });
        let address = address.recv().unwrap_or_else(|_| panic!("the proxy does not start"));
        Self { address, switches, shared, thread: Some(thread) }
    }

    /// In front of the server at `port` of 127.0.0.1.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn to(port: u16) -> Self {
        Self::start(([127, 0, 0, 1], port).into())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL `of` the server, with the proxy in the server's place.
    #[must_use]
    pub fn url(&self, of: &str) -> String {
        let (scheme, rest) = of.split_once("://").unwrap_or(("", of));
        // A password may hold anything that ends a host.
        let (user, rest) = rest.split_at(rest.rfind('@').map_or(0, |at| at + 1));
        let rest = &rest[rest.find(['/', '?']).unwrap_or(rest.len())..];
        format!("{scheme}://{user}{}{rest}", self.address)
    }

    /// Switches this direction of all connections, those to come too.
    pub fn set(&self, way: Way, flow: Flow) {
        self.switches.send_modify(|switches| {
            switches.flows[way as usize] = flow;
            switches.earlier[way as usize] = None;
        });
    }

    /// Switches both directions of all connections, those to come too.
    pub fn set_both(&self, flow: Flow) {
        BOTH.into_iter().for_each(|way| self.set(way, flow));
    }

    /// Switches this direction of the connections that there are; those to come are as they are switched for all. With
    /// [`Flow::Swallow`] the connections are half open for good.
    pub fn set_earlier(&self, way: Way, flow: Flow) {
        let last = self.shared.connections.load(SeqCst);
        self.switches.send_modify(|switches| switches.earlier[way as usize] = Some((last, flow)));
    }

    /// Ends the connections that there are. They have ended when this returns; how many there were.
    ///
    /// # Panics
    /// If one does not end.
    pub fn cut(&self, how: End) -> usize {
        let last = self.shared.connections.load(SeqCst);
        let count = self.shared.open().range(..=last).count();
        self.switches.send_modify(|switches| switches.cut = Some((last, how)));
        let ended = clock::within(PATIENCE, || self.shared.open().range(..=last).next().is_none());
        assert!(ended, "a connection through the proxy does not end");
        count
    }

    /// Refuses new connections, or accepts them again. It does when this returns.
    ///
    /// # Panics
    /// If the proxy does not listen again.
    pub fn refuse(&self, refuses: bool) {
        self.switches.send_modify(|switches| switches.refuses = refuses);
        let done = clock::within(PATIENCE, || self.shared.listens.load(SeqCst) != refuses);
        assert!(done, "the proxy does not listen to what is switched");
    }

    /// Lets the next request that has `part` in it reach the server, drops the reply, and resets the connection. An empty
    /// part is in every request. With several requests under way on one connection, the next reply is dropped.
    pub fn cut_reply_to(&self, part: impl Into<Vec<u8>>) {
        *self.shared.doomed.lock().unwrap_or_else(PoisonError::into_inner) = Some(part.into());
    }

    /// What went through so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Shared { connections, requests, passed: [to_server, to_client], cut_replies, .. } = &*self.shared;
        Counts {
            connections: connections.load(SeqCst),
            open: self.shared.open().len() as u64,
            requests: requests.load(SeqCst),
            to_server: to_server.load(SeqCst),
            to_client: to_client.load(SeqCst),
            cut_replies: cut_replies.load(SeqCst),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.switches.send_modify(|switches| switches.over = true);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, it has told why, and its connections have ended.
            thread.join().ok();
        }
    }
}

/// A socket at `address`, beside the one that keeps the port.
fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // And not to reuse the address, with which others could bind it as long as nobody listens.
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn serve(
    address: SocketAddr,
    server: SocketAddr,
    seen: &mut watch::Receiver<Switches>,
    shared: &Arc<Shared>,
    ready: impl FnOnce(),
) {
    let mut ready = Some(ready);
    let mut listener: Option<TcpListener> = None;
    loop {
        let switches = *seen.borrow_and_update();
        if switches.over {
            return;
        }
        if switches.refuses {
            listener = None;
        } else if listener.is_none() {
            let listening = socket(address).and_then(|socket| socket.listen(1024));
            listener = Some(listening.unwrap_or_else(|error| panic!("can't listen at {address}: {error}")));
        }
        shared.listens.store(listener.is_some(), SeqCst);
        if let Some(ready) = ready.take() {
            ready();
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = seen.changed() => if changed.is_err() { return },
            accepted = accepted => {
                // One that is gone already is no concern.
                let Ok((client, _)) = accepted else { continue };
                let number = shared.connections.fetch_add(1, SeqCst) + 1;
                shared.open().insert(number);
                let connection = Connection { number, seen: seen.clone(), shared: shared.clone() };
                tokio::spawn(connection.carry(client, server));
            }
        }
    }
}

/// One client's connection, and the one to the server that belongs to it.
struct Connection {
    /// From 1 on.
    number: u64,
    seen: watch::Receiver<Switches>,
    shared: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.open().remove(&self.number);
    }
}

/// What is on its way.
enum Item {
    Bytes(Vec<u8>),
    End,
}

impl Connection {
    async fn carry(self, mut client: TcpStream, server: SocketAddr) {
        let end = match TcpStream::connect(server).await {
            Ok(mut server) => {
                client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).ok();
                let end = self.carry_between(&mut client, &mut server).await;
                finish(server, end).await;
                end
            }
            // What refuses behind the proxy can only be told by a reset.
            Err(_) => End::Reset,
        };
        finish(client, end).await;
    }

    async fn carry_between(&self, client: &mut TcpStream, server: &mut TcpStream) -> End {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let doomed = AtomicBool::new(false);
        let mut seen = self.seen.clone();
        let cut = async {
            loop {
                let cut = seen.borrow_and_update().cut;
                if let Some((_, how)) = cut.filter(|(last, _)| self.number <= *last) {
                    return how;
                }
                if seen.changed().await.is_err() {
                    return End::Reset;
                }
            }
        };
        let pumps = async {
            tokio::try_join!(
                self.pump(Way::ToServer, from_client, to_server, &doomed),
                self.pump(Way::ToClient, from_server, to_client, &doomed),
            )
        };
        tokio::select! {
            biased;
            how = cut => how,
            pumped = pumps => pumped.err().unwrap_or(End::Close),
        }
    }

    /// Carries in one direction until the sender has ended; the error is how the whole connection ends at once.
    async fn pump(
        &self,
        way: Way,
        mut from: tokio::net::tcp::ReadHalf<'_>,
        mut to: tokio::net::tcp::WriteHalf<'_>,
        doomed: &AtomicBool,
    ) -> Result<(), End> {
        let mut seen = self.seen.clone();
        let mut held: VecDeque<(Moment, Item)> = VecDeque::new();
        let mut buffer = vec![0; 64 * 1024];
        // The sender has ended; something was swallowed; the receiver has gone.
        let (mut ended, mut gap, mut broken) = (false, false, false);
        loop {
            let flow = seen.borrow_and_update().flow(self.number, way);
            if flow == Flow::Swallow && !held.is_empty() {
                held.clear();
                gap = true;
            }
            let due = held.front().filter(|_| !matches!(flow, Flow::Hold | Flow::Stall)).map(|(due, _)| *due);
            let waits = due.is_some();
            let due = SystemClock.sleep_until(due.unwrap_or(Moment::NEVER));
            tokio::select! {
                biased;
                changed = seen.changed() => if changed.is_err() { return Err(End::Reset) },
                () = due, if waits => {
                    match held.pop_front() {
                        Some((_, Item::Bytes(bytes))) => {
                            self.shared.passed[way as usize].fetch_add(bytes.len() as u64, SeqCst);
                            // The rest is still read to its end, as if the receiver had it.
                            broken = broken || to.write_all(&bytes).await.is_err();
                        }
                        _ => {
                            to.shutdown().await.ok();
                            return Ok(());
                        }
                    }
                }
                read = from.read(&mut buffer), if !ended && flow != Flow::Stall => {
                    let read = read.unwrap_or(0);
                    ended = read == 0;
                    // As it is switched now.
                    let flow = seen.borrow().flow(self.number, way);
                    if way == Way::ToServer && !ended {
                        self.shared.requests.fetch_add(1, SeqCst);
                    }
                    if gap || flow == Flow::Swallow {
                        gap = true;
                        continue;
                    }
                    if way == Way::ToServer && !ended && self.shared.dooms(&buffer[..read]) {
                        doomed.store(true, SeqCst);
                    }
                    if way == Way::ToClient && !ended && doomed.load(SeqCst) {
                        self.shared.cut_replies.fetch_add(1, SeqCst);
                        return Err(End::Reset);
                    }
                    let due = now() + if let Flow::Delay(time) = flow { time } else { Duration::ZERO };
                    let item = if ended { Item::End } else { Item::Bytes(buffer[..read].to_vec()) };
                    held.push_back((due, item));
                }
            }
        }
    }
}

async fn finish(mut stream: TcpStream, end: End) {
    match end {
        // Dropping it with this set is a reset.
        End::Reset => stream.set_zero_linger().ok(),
        End::Close => stream.shutdown().await.ok(),
    };
}

#[cfg(test)]
mod tests;

//! A TCP proxy in front of a server, with faults that a test switches on and off at any moment.
//!
//! It runs on a thread of its own, so a test may block. A byte that the proxy reads after a switch has returned is treated
//! as the switch says.
//!
//! As in TCP, there is no byte behind a gap: a connection of which something was [swallowed](Flow::Swallow) passes nothing
//! more in that direction, whatever is switched later. New connections are well again.
//!
//! What is not a matter of bytes but of one request, such as a reply that is lost, is a [`Fate`].

mod connection;
mod fate;
mod requests;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::sync::watch;

pub use self::fate::Fate;
use self::{
    connection::{serve, socket},
    fate::Choice,
    requests::Framing,
};
use crate::clock::{self, PATIENCE};

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
    /// How often something came from a client: one for each request, if each waits for its answer. Exact for
    /// [HTTP](Proxy::to_http).
    pub requests: u64,
    /// Bytes that went to the server.
    pub to_server: u64,
    /// Bytes that went to clients.
    pub to_client: u64,
    /// Replies that were [cut](Fate::CutReply).
    pub cut_replies: u64,
    /// Requests that met a [`Fate`].
    pub fated: u64,
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
    framing: Framing,
    listens: AtomicBool,
    connections: AtomicU64,
    open: Mutex<BTreeSet<u64>>,
    requests: AtomicU64,
    passed: [AtomicU64; 2],
    cut_replies: AtomicU64,
    fated: AtomicU64,
    choice: Mutex<Option<Choice>>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choice(&self) -> MutexGuard<'_, Option<Choice>> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of this request, if nothing ordinary does.
    fn fate(&self, request: &[u8]) -> Option<Fate> {
        let mut choice = self.choice();
        let fate = choice.as_ref()?.fate_of(request)?.clone();
        choice.take_if(|choice| choice.once);
        self.fated.fetch_add(1, SeqCst);
        Some(fate)
    }
}

impl Proxy {
    /// In front of what listens, now or later, at `server`.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        Self::framed(server, Framing::Reads)
    }

    /// In front of the server at `port` of 127.0.0.1.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn to(port: u16) -> Self {
        Self::start(([127, 0, 0, 1], port).into())
    }

    /// The same for one that speaks HTTP/1.1 without TLS: a request is whole before it passes, however it comes, so each has
    /// one [`Fate`] and is counted once. Of one with a body, the length is in its head.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn to_http(port: u16) -> Self {
        Self::framed(([127, 0, 0, 1], port).into(), Framing::Http)
    }

    fn framed(server: SocketAddr, framing: Framing) -> Self {
        let shared = Arc::new(Shared { framing, ..Shared::default() });
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL `of` the server, with the proxy in the server's place.
    #[must_use]
    pub fn url(&self, of: &str) -> String {
        // One that names a service names its emulator behind that.
        const EMULATOR: &str = "emulator=";
        let (before, server) = of.split_at(of.find(EMULATOR).map_or(0, |at| at + EMULATOR.len()));
        let (scheme, rest) = server.split_once("://").unwrap_or(("", server));
        // A password may hold anything that ends a host.
        let (user, rest) = rest.split_at(rest.rfind('@').map_or(0, |at| at + 1));
        let rest = &rest[rest.find(['/', '?', '&']).unwrap_or(rest.len())..];
        format!("{before}{scheme}://{user}{}{rest}", self.address)
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

    /// Lets the next request that has `part` in it reach the server, drops the reply, and resets the connection: that
    /// request's fate is [`Fate::CutReply`]. An empty part is in every request.
    pub fn cut_reply_to(&self, part: impl Into<Vec<u8>>) {
        self.choose([part], Fate::CutReply, true);
    }

    /// The next request that has all `parts` in it meets this `fate`. There is one fate at a time: this replaces the one
    /// before.
    pub fn next<P: Into<Vec<u8>>>(&self, parts: impl IntoIterator<Item = P>, fate: Fate) {
        self.choose(parts, fate, true);
    }

    /// Every request from now on that has all `parts` in it meets this `fate`, until there is another one or
    /// [none](Self::spare). No parts are in every request.
    pub fn every<P: Into<Vec<u8>>>(&self, parts: impl IntoIterator<Item = P>, fate: Fate) {
        self.choose(parts, fate, false);
    }

    /// No request from now on meets a fate. What one has done to a connection stays.
    pub fn spare(&self) {
        *self.shared.choice() = None;
    }

    fn choose<P: Into<Vec<u8>>>(&self, parts: impl IntoIterator<Item = P>, fate: Fate, once: bool) {
        let parts = parts.into_iter().map(Into::into).collect();
        *self.shared.choice() = Some(Choice { parts, fate, once });
    }

    /// What went through so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Shared { connections, requests, passed: [to_server, to_client], cut_replies, fated, .. } =
            &*self.shared;
        Counts {
            connections: connections.load(SeqCst),
            open: self.shared.open().len() as u64,
            requests: requests.load(SeqCst),
            to_server: to_server.load(SeqCst),
            to_client: to_client.load(SeqCst),
            cut_replies: cut_replies.load(SeqCst),
            fated: fated.load(SeqCst),
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

#[cfg(test)]
mod tests;

//! A TCP proxy in front of a server, with faults that a test switches on and off at any moment.
//!
//! It runs on its own thread, so a test may block. A byte that the proxy reads after a switch call has returned is treated
//! according to that switch.
//!
//! As in TCP, no byte follows a gap: a connection that has [dropped](Flow::Drop) bytes passes nothing more in that direction,
//! regardless of later switches. New connections are not affected.
//!
//! A fault of a single request, such as a lost reply, is a [`RequestFault`].

mod connection;
mod request_fault;
mod requests;
mod state;
mod switches;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::SeqCst},
    thread::{self, JoinHandle},
};

use tokio::sync::watch;

pub(crate) use self::requests::length as http_length;
use self::{
    connection::{serve, socket},
    request_fault::Choice,
    requests::Framing,
    state::{Shared, Watched},
    switches::{Range, Switches},
};
pub use self::{
    request_fault::RequestFault,
    switches::{BOTH, Direction, End, Flow},
};
use crate::clock::{self, TIMEOUT};

/// The traffic so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Accepted connections.
    pub connections: u64,
    /// Accepted connections that are still open.
    pub open: u64,
    /// Requests: reads from a client that returned bytes, one per request if each waits for its reply. Exact for
    /// [HTTP](Proxy::to_http).
    pub requests: u64,
    /// Bytes sent to the server.
    pub to_server: u64,
    /// Bytes sent to clients.
    pub to_client: u64,
    /// Connections that were [reset before a reply](RequestFault::ResetBeforeReply).
    pub resets_before_reply: u64,
    /// Requests to which a [`RequestFault`] was applied.
    pub faulted: u64,
}

/// A proxy in front of one server. When it is dropped, all its connections end.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    switches: watch::Sender<Switches>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy for the server at `server`, which may start to listen later.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        Self::framed(server, Framing::Reads)
    }

    /// Starts a proxy for the server at `port` of 127.0.0.1.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn to(port: u16) -> Self {
        Self::start(([127, 0, 0, 1], port).into())
    }

    /// Starts a proxy for the first server of this machine in `url`, and returns it with the URL through it; `None` if there is no server.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn in_front_of(url: &str) -> Option<(Self, String)> {
        let server = &url[url.find("127.0.0.1:")?..];
        let server = &server[..server.find(['/', '?', '&', ',']).unwrap_or(server.len())];
        let proxy = Self::start(server.parse().ok()?);
        let url = url.replacen(server, &proxy.address().to_string(), 1);
        Some((proxy, url))
    }

    /// Starts a proxy for a server that speaks HTTP/1.1 without TLS. A request passes when it is complete, so each has one [`RequestFault`] and
    /// is counted once. A body must have a `Content-Length`.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn to_http(port: u16) -> Self {
        Self::framed(([127, 0, 0, 1], port).into(), Framing::Http)
    }

    fn framed(server: SocketAddr, framing: Framing) -> Self {
        let shared = Arc::new(Shared::new(framing));
        let (switches, mut seen) = watch::channel(Switches {
            server,
            flows: [Flow::default(); 2],
            overrides: [None; 2],
            cut: None,
            refuses: false,
            stopped: false,
        });
        let (sender, address) = std::sync::mpsc::channel();
        let thread = thread::spawn({
            let shared = shared.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.unwrap_or_else(|error| panic!("can't create a runtime: {error}"));
                runtime.block_on(async {
                    // Reserves the port while the proxy refuses connections.
                    let bound = socket(([127, 0, 0, 1], 0).into()).and_then(|socket| {
                        let address = socket.local_addr()?;
                        Ok((socket, address))
                    });
                    let (_reserved, address) = bound.unwrap_or_else(|error| panic!("no free port: {error}"));
                    serve(address, &mut seen, &shared, || sender.send(address).unwrap_or_default()).await;
                });
            }
        });
        let address = address.recv().unwrap_or_else(|_| panic!("the proxy has not started"));
        Self { address, switches, shared, thread: Some(thread) }
    }

    /// Returns the address of the proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the server with the address of the proxy.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        // The URL of a service contains the URL of its emulator.
        const EMULATOR: &str = "emulator=";
        let (before, server) = url.split_at(url.find(EMULATOR).map_or(0, |at| at + EMULATOR.len()));
        let (scheme, rest) = server.split_once("://").unwrap_or(("", server));
        // A password may contain the characters that end a host.
        let (user, rest) = rest.split_at(rest.rfind('@').map_or(0, |at| at + 1));
        let rest = &rest[rest.find(['/', '?', '&']).unwrap_or(rest.len())..];
        format!("{before}{scheme}://{user}{}{rest}", self.address)
    }

    /// Sets the flow in this direction for all connections, future ones included.
    pub fn set(&self, way: Direction, flow: Flow) {
        self.switches.send_modify(|switches| {
            switches.flows[way as usize] = flow;
            switches.overrides[way as usize] = None;
        });
    }

    /// Sets the flow in both directions for all connections, future ones included.
    pub fn set_both(&self, flow: Flow) {
        BOTH.into_iter().for_each(|way| self.set(way, flow));
    }

    /// Sets the flow in this direction for the existing connections, not for future ones. With [`Flow::Drop`] the connections stay half
    /// open.
    pub fn set_existing(&self, way: Direction, flow: Flow) {
        self.set_range(self.existing(), way, flow);
    }

    /// Sets the flow in this direction for one connection; they are numbered from 1. Replaces the flow of other single connections.
    pub fn set_one(&self, number: u64, way: Direction, flow: Flow) {
        self.set_range(Range(number, number), way, flow);
    }

    fn set_range(&self, range: Range, way: Direction, flow: Flow) {
        self.switches.send_modify(|switches| switches.overrides[way as usize] = Some((range, flow)));
    }

    fn existing(&self) -> Range {
        Range(1, self.shared.connections.load(SeqCst))
    }

    /// Connects new connections to another server; existing ones stay.
    pub fn redirect_to(&self, server: SocketAddr) {
        self.switches.send_modify(|switches| switches.server = server);
    }

    /// Ends all existing connections, and returns their number. They have ended when this returns.
    ///
    /// # Panics
    /// If one does not end.
    pub fn cut(&self, end: End) -> usize {
        self.cut_range(self.existing(), end)
    }

    /// Ends one connection; they are numbered from 1. It has ended when this returns.
    ///
    /// # Panics
    /// If it does not end.
    pub fn cut_one(&self, number: u64, end: End) {
        self.cut_range(Range(number, number), end);
    }

    /// Returns the number of the first `count` connections that are still open.
    #[must_use]
    pub fn open_of_first(&self, count: u64) -> u64 {
        self.open_in(Range(1, count)) as u64
    }

    fn open_in(&self, range: Range) -> usize {
        self.shared.open().iter().filter(|number| range.contains(**number)).count()
    }

    fn cut_range(&self, range: Range, end: End) -> usize {
        let open = || self.open_in(range);
        let count = open();
        self.switches.send_modify(|switches| switches.cut = Some((range, end)));
        assert!(
            clock::within(TIMEOUT, || open() == 0),
            "a connection through the proxy has not ended within {TIMEOUT:?}"
        );
        count
    }

    /// Refuses new connections, or accepts them again. It has taken effect when this returns, or a call of another thread has replaced it.
    ///
    /// # Panics
    /// If the proxy does not follow.
    pub fn refuse(&self, refuses: bool) {
        self.switches.send_modify(|switches| switches.refuses = refuses);
        let is_replaced = || self.switches.borrow().refuses != refuses;
        let done =
            clock::within(TIMEOUT, || self.shared.is_listening.load(SeqCst) != refuses || is_replaced());
        assert!(done, "the proxy has not followed a switch within {TIMEOUT:?}");
    }

    /// Applies [`RequestFault::ResetBeforeReply`] to the next request that contains `part`: it reaches the server, and the connection is reset before the
    /// reply. An empty part matches every request.
    pub fn reset_before_reply_to(&self, part: impl Into<Vec<u8>>) {
        self.choose([part], RequestFault::ResetBeforeReply, true);
    }

    /// Applies `fault` to the next request that contains all `parts`. It replaces an earlier fault that was not applied yet.
    pub fn fault_next<P: Into<Vec<u8>>>(&self, parts: impl IntoIterator<Item = P>, fault: RequestFault) {
        self.choose(parts, fault, true);
    }

    /// Applies `fault` to every request from now on that contains all `parts`, until another call or [`clear_faults`](Self::clear_faults). No parts match
    /// every request.
    pub fn fault_every<P: Into<Vec<u8>>>(&self, parts: impl IntoIterator<Item = P>, fault: RequestFault) {
        self.choose(parts, fault, false);
    }

    /// Removes the fault for future requests. Affected connections stay as they are.
    pub fn clear_faults(&self) {
        *self.shared.choice() = None;
    }

    fn choose<P: Into<Vec<u8>>>(&self, parts: impl IntoIterator<Item = P>, fault: RequestFault, once: bool) {
        let parts = parts.into_iter().map(Into::into).collect();
        *self.shared.choice() = Some(Choice { parts, fault, once });
    }

    /// Records from now on the connections of requests that contain `part`, and removes earlier records.
    pub fn watch_for(&self, part: impl Into<Vec<u8>>) {
        self.watch(Direction::ToServer, part.into());
    }

    /// Records from now on the connections of replies that contain `part`, and removes earlier records. A reply is recorded when it
    /// arrives from the server, even if the client has closed the connection.
    pub fn watch_for_replies(&self, part: impl Into<Vec<u8>>) {
        self.watch(Direction::ToClient, part.into());
    }

    fn watch(&self, way: Direction, part: Vec<u8>) {
        *self.shared.watched(way) = Watched { part: Some(part), connections: Vec::new() };
    }

    /// Returns the numbers of the connections of the [watched](Self::watch_for) requests, one for each request, even if it did not pass.
    #[must_use]
    pub fn watched(&self) -> Vec<u64> {
        self.shared.watched(Direction::ToServer).connections.clone()
    }

    /// Returns the numbers of the connections of the [watched](Self::watch_for_replies) replies, one for each reply.
    #[must_use]
    pub fn watched_replies(&self) -> Vec<u64> {
        self.shared.watched(Direction::ToClient).connections.clone()
    }

    /// Returns the counts of the traffic so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Shared {
            connections,
            requests,
            passed: [to_server, to_client],
            resets_before_reply,
            faulted,
            ..
        } = &*self.shared;
        Counts {
            connections: connections.load(SeqCst),
            open: self.shared.open().len() as u64,
            requests: requests.load(SeqCst),
            to_server: to_server.load(SeqCst),
            to_client: to_client.load(SeqCst),
            resets_before_reply: resets_before_reply.load(SeqCst),
            faulted: faulted.load(SeqCst),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.switches.send_modify(|switches| switches.stopped = true);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, it has printed a message, and its connections have ended.
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests;

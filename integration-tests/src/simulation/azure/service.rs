//! The simulated service: its connections, its clock, and the times in which it is busy.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use fastrand::Rng;
use polylock_core::sync::lock;

use super::{
    blobs::Blobs,
    http::{Reply, Request, take_request},
};
use crate::simulation::{
    clock::WallClock,
    listener::{Listener, Stop},
    plan::Planted,
    socket::{Acceptor, Connection, Segment},
    time::Time,
    timeline::Timeline,
};

/// The service.
#[derive(Debug)]
pub struct Service {
    time: Arc<Time>,
    /// Its clock.
    pub clock: WallClock,
    planted: Option<Planted>,
    timeline: Arc<Timeline>,
    /// The time at which the last request was sent, by connection.
    sent: Mutex<BTreeMap<u64, u64>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Rng,
    listener: Listener,
    /// True while it asks its clients for pauses.
    is_busy: bool,
    /// True while it executes the requests that have arrived during a pause.
    is_late: bool,
    blobs: Blobs,
}

impl Service {
    /// Creates a service that is up, without a container.
    #[must_use]
    pub fn new(
        clock: WallClock,
        planted: Option<Planted>,
        (time, timeline): (Arc<Time>, Arc<Timeline>),
        mut random: Rng,
    ) -> Arc<Self> {
        let blobs = Blobs::new(planted, random.fork());
        let state = State { random, listener: Listener::default(), is_busy: false, is_late: false, blobs };
        Arc::new(Self { time, clock, planted, timeline, sent: Mutex::default(), state: Mutex::new(state) })
    }

    /// Calls `look` with the blobs at the present time.
    pub fn inspect<T>(&self, look: impl FnOnce(&Blobs) -> T) -> T {
        let mut state = self.lock();
        state.blobs.now_us = self.clock.now_us();
        look(&state.blobs)
    }

    /// Executes the requests that have arrived on `connection`, and sends the replies.
    fn read(&self, state: &mut State, connection: &Connection) {
        if let Some(request) = state.listener.input(connection.number).and_then(take_request) {
            state.blobs.now_us = self.clock.now_us();
            let reply = self.reply(state, connection, &request);
            self.timeline.note("service", || {
                let (process, code) = (connection.process.0, reply.shown());
                format!("p{process} {}: {code}", request.shown())
            });
            state.listener.send(connection.number, reply.encode());
        }
    }

    fn reply(&self, state: &mut State, connection: &Connection, request: &Request) -> Reply {
        let sent = lock(&self.sent).get(&connection.number).copied().unwrap_or(0);
        let delay = self.time.now().saturating_sub(sent);
        if state.is_busy && state.random.bool() {
            let (status, code) = *state
                .random
                .choice(&[(503, "ServerBusy"), (429, "TooManyRequests")])
                .unwrap_or(&(503, "ServerBusy"));
            let refusal = Reply::refusal(status, code);
            return match state.random.u8(..3) {
                0 => refusal,
                1 => refusal.header("Retry-After", state.random.u8(1..5).to_string()),
                _ => refusal.header("x-ms-retry-after-ms", state.random.u16(10..2000).to_string()),
            };
        }
        let limit =
            request.parameter("timeout").parse::<u64>().map_or(u64::MAX, |seconds| seconds * 1_000_000_000);
        if state.is_late && delay > limit {
            return Reply::refusal(500, "OperationTimedOut");
        }
        // The time for the request and its reply.
        let early = if self.planted == Some(Planted::AzureReplyDeadline) { 2 * delay } else { 0 };
        let reply = state.blobs.execute(request, connection.process, (early / 1000).cast_signed());
        // Such a reply does not reveal whether the request was executed.
        if state.is_busy && state.random.bool() { Reply::refusal(500, "InternalError") } else { reply }
    }

    /// Stops the service, or makes it busy. An operator may delete the blobs that nobody uses.
    pub fn pause(&self) {
        let mut state = self.lock();
        match state.random.u8(..3) {
            0 => state.listener.pause(),
            1 => state.is_busy = true,
            _ => {
                state.blobs.now_us = self.clock.now_us();
                state.blobs.delete_free_blobs();
            }
        }
    }

    /// Continues, and executes the requests that have arrived.
    pub fn resume(&self) {
        let arrived = {
            let mut state = self.lock();
            (state.is_busy, state.is_late) = (false, true);
            state.listener.resume()
        };
        for (connection, segment) in arrived {
            self.receive(&connection, &segment);
        }
        self.lock().is_late = false;
    }

    /// Ends the service. Requests that have arrived are lost.
    pub fn crash(&self) {
        let mut state = self.lock();
        let stop = if state.random.bool() { Stop::Refuses } else { Stop::Silent };
        state.listener.crash(stop);
        if self.planted == Some(Planted::AzureLostState) {
            state.blobs.end_leases();
        }
    }

    /// Starts the service again.
    pub fn restart(&self) {
        self.lock().listener.restart();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Acceptor for Service {
    fn number(&self) -> usize {
        0
    }

    fn receive(&self, connection: &Arc<Connection>, segment: &Segment) {
        let mut state = self.lock();
        if state.listener.receive(connection, segment) {
            self.read(&mut state, connection);
        }
    }

    fn record(&self, connection: &Connection, sent: &mut Vec<u8>) {
        sent.clear();
        lock(&self.sent).insert(connection.number, self.time.now());
    }
}

//! The server of a run, behind the network: it executes calls while it is up, and sends replies and notifications.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use polylock_core::{RequestId, sync::lock};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    network::{Network, Way},
    queue_server::{Call, QueueServer, Reply},
    time::Time,
    timeline::Timeline,
};

/// The server's clock at the begin of a run, in microseconds.
const EPOCH_US: i64 = 1_700_000_000_000_000;

/// The server, and its state.
#[derive(Debug)]
pub struct Server {
    time: Arc<Time>,
    network: Arc<Network>,
    timeline: Arc<Timeline>,
    /// The locks.
    pub locks: QueueServer,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_down: bool,
    is_paused: bool,
    /// The calls that have arrived during a pause.
    arrived: Vec<(usize, Call, ReplySender)>,
    /// The requests for which a release was sent.
    releases: BTreeSet<RequestId>,
}

/// The receiver of the reply to a call, with the server's clock in microseconds.
pub type ReplySender = UnboundedSender<(i64, Reply)>;

impl Server {
    /// Creates a server that is up.
    #[must_use]
    pub fn new(
        time: Arc<Time>,
        network: Arc<Network>,
        timeline: Arc<Timeline>,
        locks: QueueServer,
    ) -> Arc<Self> {
        Arc::new(Self { time, network, timeline, locks, state: Mutex::default() })
    }

    /// Returns the time of the server's clock, in microseconds.
    #[must_use]
    pub fn now_us(&self) -> i64 {
        EPOCH_US + (self.time.now() / 1000).cast_signed()
    }

    /// Returns the time of the run at which the server's clock shows `us`.
    #[must_use]
    pub const fn to_run(us: i64) -> u64 {
        (us - EPOCH_US).cast_unsigned() * 1000
    }

    /// Sends `call` on `link`.
    pub fn call(self: &Arc<Self>, link: usize, call: Call, reply: ReplySender) {
        if let Call::Release(request, _) = &call {
            lock(&self.state).releases.insert(request.id);
        }
        let server = self.clone();
        self.network.send(link, Way::There, move || server.receive(link, call, reply));
    }

    fn receive(&self, link: usize, call: Call, sender: ReplySender) {
        let mut state = lock(&self.state);
        if state.is_down {
            return;
        }
        if state.is_paused {
            return state.arrived.push((link, call, sender));
        }
        drop(state);
        let now = self.now_us();
        let sent = self.timeline.is_recorded().then(|| call.to_string());
        let (reply, notifications) = self.locks.execute(now, call);
        if let Some(call) = sent {
            self.timeline.note("server", || format!("p{link} {call}: {reply}"));
        }
        self.network.send(link, Way::Back, move || drop(sender.send((now, reply))));
        for (subscriber, handover) in notifications {
            self.timeline.note("server", || {
                format!("grants token {} to a waiter of p{}", handover.grant.token, subscriber.link)
            });
            self.network.send(subscriber.link, Way::Back, move || subscriber.wakeups.deliver(handover));
        }
    }

    /// Returns true if a release of `request` was sent, whether or not it has arrived.
    #[must_use]
    pub fn was_release_sent(&self, request: RequestId) -> bool {
        lock(&self.state).releases.contains(&request)
    }

    /// Stops the server.
    pub fn pause(&self) {
        lock(&self.state).is_paused = true;
    }

    /// Continues, and executes the calls that have arrived.
    pub fn resume(&self) {
        let mut state = lock(&self.state);
        state.is_paused = false;
        let arrived = std::mem::take(&mut state.arrived);
        drop(state);
        for (link, call, sender) in arrived {
            self.receive(link, call, sender);
        }
    }

    /// Ends the server. Calls that have arrived are lost.
    pub fn crash(&self) {
        let mut state = lock(&self.state);
        state.is_down = true;
        state.arrived.clear();
    }

    /// Starts the server again.
    pub fn restart(&self) {
        self.locks.restart();
        lock(&self.state).is_down = false;
    }
}

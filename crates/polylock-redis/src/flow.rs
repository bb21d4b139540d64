//! Flow control of the calls to one server: limits and orders the calls in flight, and measures the time in which the server is silent.
//!
//! Without it, a client with thousands of locks would queue thousands of commands in its own connection, and attribute the time in that
//! queue to the server.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use polylock_core::{
    Clock, Moment, Operation, SystemClock,
    gate::{Gate, Permit, Precedence},
    sync::lock,
};

/// The number of calls that may be in flight besides renewals: far more than keep a server busy, which takes some 10 us for each.
const IN_FLIGHT: usize = 64;

/// The number of renewals that may be in flight. Each can contain hundreds of requests.
const RENEWALS_IN_FLIGHT: usize = 2;

/// The maximum duration of a call while the server replies to other calls, as a multiple of its timeout.
pub(crate) const MAX_TIMEOUT_FACTOR: u32 = 4;

/// The delay of a timer above which the thread was held up: its other work is late, too.
const STALLED: Duration = Duration::from_millis(10);

/// The calls to one server, on any connection.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Renewals do not wait for other calls.
    renewals: Arc<Gate>,
    other_calls: Arc<Gate>,
}

impl Default for Flow {
    fn default() -> Self {
        Self { renewals: Gate::new(RENEWALS_IN_FLIGHT, [0; 3]), other_calls: Gate::new(IN_FLIGHT, [0; 3]) }
    }
}

impl Flow {
    /// Returns a permit for a call, as soon as one is free. Releases come first.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub(crate) async fn enter(&self, operation: Operation) -> Permit {
        match (operation, Precedence::of(operation)) {
            (_, Precedence::KeepAlive) => self.renewals.enter(Precedence::KeepAlive).await,
            (Operation::Connect, _) => self.other_calls.enter(Precedence::Release).await,
            (_, precedence) => self.other_calls.enter(precedence).await,
        }
    }
}

/// The calls in flight on one connection, and the replies to them.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// The number of calls without a reply yet.
    in_flight: usize,
    /// The start of the present silence, if a reply was due then.
    unanswered_since: Option<Moment>,
    /// The arrival time of the last reply.
    replied: Option<Moment>,
}

/// A call in flight. Dropping it ends the wait for its reply.
#[derive(Debug)]
pub(crate) struct CallInFlight {
    traffic: Arc<Traffic>,
    sent_at: Moment,
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        // `unanswered_since` stays: the server is silent until it replies to any call.
        self.traffic.lock().in_flight -= 1;
    }
}

impl Traffic {
    /// Records that a call is about to be sent.
    pub(crate) fn start_call(self: &Arc<Self>) -> CallInFlight {
        let sent_at = SystemClock.now();
        let mut counts = self.lock();
        counts.in_flight += 1;
        counts.unanswered_since.get_or_insert(sent_at);
        CallInFlight { traffic: self.clone(), sent_at }
    }

    /// Returns the time for which a reply has been due.
    pub(crate) fn time_without_reply(&self) -> Duration {
        self.lock().unanswered_since.map_or(Duration::ZERO, |since| SystemClock.now().since(since))
    }

    /// Returns true if as many calls are in flight as are allowed besides renewals.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().in_flight >= IN_FLIGHT
    }

    /// Returns true if a reply has arrived since `since`.
    pub(crate) fn replied_since(&self, since: Moment) -> bool {
        self.lock().replied.is_some_and(|replied| replied >= since)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        lock(&self.0)
    }
}

impl CallInFlight {
    /// Returns the time at which the call was sent.
    pub(crate) const fn sent_at(&self) -> Moment {
        self.sent_at
    }

    /// Records that the server has replied.
    pub(crate) fn replied(self) {
        let mut counts = self.traffic.lock();
        let now = SystemClock.now();
        counts.replied = Some(now);
        counts.unanswered_since = (counts.in_flight > 1).then_some(now);
    }

    /// Returns the output of `reply`; `None` if the server has sent no reply at all for `timeout`, or not this one for several times as
    /// long. Time in which this thread was held up does not count.
    ///
    /// # Cancel safety
    /// Dropping the future drops `reply`.
    pub(crate) async fn wait<F: Future>(&self, timeout: Duration, reply: F) -> Option<F::Output> {
        let mut reply = pin!(reply);
        let (mut deadline, longest) = (self.sent_at + timeout, self.sent_at + MAX_TIMEOUT_FACTOR * timeout);
        loop {
            if let Some(output) = SystemClock.before(deadline, reply.as_mut()).await {
                return Some(output);
            }
            let now = SystemClock.now();
            let replied = self.traffic.lock().replied.map_or(self.sent_at, |at| at.max(self.sent_at));
            let next = (replied + timeout).max(now + grace(deadline, now, timeout));
            deadline = next.min(longest);
            if deadline <= now {
                return None;
            }
        }
    }
}

/// Returns the extra time to wait, at `now`, if the deadline was noticed late: the thread was held up, and a reply may have arrived that it
/// has not read yet.
pub(crate) fn grace(deadline: Moment, now: Moment, timeout: Duration) -> Duration {
    let late = now.since(deadline);
    if late > STALLED { late.min(timeout) } else { Duration::ZERO }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use futures_util::{FutureExt, future};

    #[test]
    fn releases_go_before_claims() {
        let flow = Flow::default();
        let claims: Vec<_> =
            (0..IN_FLIGHT).map(|_| flow.enter(Operation::Claim).now_or_never().unwrap()).collect();
        let enter = |operation| Box::pin(flow.enter(operation));
        let (mut claim, mut release) = (enter(Operation::Claim), enter(Operation::Release));
        assert!(claim.as_mut().now_or_never().is_none() && release.as_mut().now_or_never().is_none());
        let mut claims = claims.into_iter();
        drop(claims.next());
        assert!(claim.as_mut().now_or_never().is_none(), "a release goes first");
        assert!(release.as_mut().now_or_never().is_some());
    }

    #[test]
    fn renewals_do_not_wait_for_other_calls() {
        let flow = Flow::default();
        let enter = |operation| flow.enter(operation).now_or_never();
        let claims: Vec<_> = (0..IN_FLIGHT).map(|_| enter(Operation::Claim).unwrap()).collect();
        assert!(enter(Operation::Claim).is_none() && enter(Operation::Release).is_none());
        let renewals: Vec<_> = (0..RENEWALS_IN_FLIGHT).map(|_| enter(Operation::Renew).unwrap()).collect();
        assert!(enter(Operation::Renew).is_none());
        drop((claims, renewals));
        assert!(enter(Operation::Release).is_some() && enter(Operation::Renew).is_some());
    }

    #[tokio::test]
    async fn a_server_that_replies_to_other_calls_is_responsive() {
        const TIMEOUT: Duration = Duration::from_millis(100);
        let traffic = Arc::<Traffic>::default();
        let (first, second) = (traffic.start_call(), traffic.start_call());
        let began = SystemClock.now();
        let others = async {
            SystemClock.sleep_until(began + TIMEOUT * 8 / 10).await;
            first.replied();
            future::pending::<()>().await;
        };
        let mut others = pin!(others);
        let mut waiting = Box::pin(second.wait(TIMEOUT, future::pending::<()>()));
        tokio::select! {
            () = &mut others => unreachable!(),
            reply = &mut waiting => assert!(reply.is_none()),
        }
        let took = SystemClock.now().since(began);
        assert!(took >= TIMEOUT * 18 / 10 && took < TIMEOUT * 5, "{took:?}");
        assert!(traffic.replied_since(began) && traffic.time_without_reply() >= TIMEOUT);
        drop(waiting);
        drop(second);
        assert!(traffic.time_without_reply() >= TIMEOUT, "until it replies");
        traffic.start_call().replied();
        assert_eq!(traffic.time_without_reply(), Duration::ZERO);
    }

    #[test]
    fn a_stalled_thread_extends_the_deadline() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let (timeout, ms) = (Duration::from_millis(200), Duration::from_millis);
        assert_eq!(grace(at(500), at(502), timeout), ms(0));
        assert_eq!(grace(at(500), at(560), timeout), ms(60));
        assert_eq!(grace(at(500), at(5000), timeout), timeout);
    }
}

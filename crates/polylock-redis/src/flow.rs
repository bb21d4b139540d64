//! Flow control of the calls to one server: how many are in flight, which of them go first, and for how long the server is silent.
//!
//! A client with thousands of locks would otherwise queue thousands of commands in its own connection, and take the time that they
//! spend there for the server's.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use polylock_core::{Clock, Moment, Operation, SystemClock};
use tokio::sync::oneshot;

/// How many calls may be in flight besides renewals: far more than keep a server busy, which takes some 10 us for each.
const IN_FLIGHT: usize = 64;

/// How many renewals may be in flight: each can be about hundreds of requests.
const RENEWALS_IN_FLIGHT: usize = 2;

/// How many times its time limit a call may take at most, while the server replies to others.
pub(crate) const LONGEST: u32 = 4;

/// A timer that is later than this was held up, and what else the thread had to do, too.
const HELD_UP: Duration = Duration::from_millis(10);

/// The calls to one server, whatever the connection.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Renewals do not wait for anything else.
    renewals: Arc<Gate>,
    others: Arc<Gate>,
}

impl Default for Flow {
    fn default() -> Self {
        Self { renewals: Gate::new(RENEWALS_IN_FLIGHT), others: Gate::new(IN_FLIGHT) }
    }
}

impl Flow {
    /// A place in flight for a call: as soon as one is free, releases first.
    ///
    /// # Cancel safety
    /// Dropping it leaves the queue.
    pub(crate) async fn enter(&self, operation: Operation) -> Permit {
        match operation {
            Operation::Renew => self.renewals.enter(Priority::High).await,
            Operation::Release | Operation::Break | Operation::Connect => {
                self.others.enter(Priority::High).await
            }
            _ => self.others.enter(Priority::Low).await,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Priority {
    High = 0,
    Low = 1,
}

/// Lets a limited number of calls through: those of high priority first, each in order of arrival.
#[derive(Debug)]
struct Gate(Mutex<Places>);

#[derive(Debug)]
struct Places {
    free: usize,
    /// The calls that wait, by priority.
    waiting: [VecDeque<oneshot::Sender<()>>; 2],
}

/// A place in flight; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Gate>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A call that waits.
struct Waiting<'a> {
    gate: &'a Gate,
    turn: oneshot::Receiver<()>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.turn.close();
        if self.turn.try_recv().is_ok() {
            // It has got a place that it does not use.
            self.gate.leave();
        }
    }
}

impl Gate {
    fn new(free: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Places { free, waiting: Default::default() })))
    }

    async fn enter(self: &Arc<Self>, priority: Priority) -> Permit {
        let turn = {
            let mut places = self.lock();
            if places.free > 0 {
                places.free -= 1;
                None
            } else {
                let (sender, turn) = oneshot::channel();
                places.waiting[priority as usize].push_back(sender);
                Some(turn)
            }
        };
        if let Some(turn) = turn {
            let mut waiting = Waiting { gate: self, turn };
            // The sender is dropped only with this gate, or after it was sent to.
            (&mut waiting.turn).await.ok();
        }
        Permit(self.clone())
    }

    /// Passes a place to the next call that still waits for one.
    fn leave(&self) {
        let mut places = self.lock();
        while let Some(next) = places.waiting.iter_mut().find_map(VecDeque::pop_front) {
            if next.send(()).is_ok() {
                return;
            }
        }
        places.free += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls in flight on one connection, and the replies to them.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// How many replies are waited for.
    due: usize,
    /// Since when there was no reply, if one was due.
    silent_since: Option<Moment>,
    /// When the last reply arrived.
    replied: Option<Moment>,
}

/// A call in flight; dropping it means that its reply is waited for no longer.
#[derive(Debug)]
pub(crate) struct Due {
    traffic: Arc<Traffic>,
    sent_at: Moment,
}

impl Drop for Due {
    fn drop(&mut self) {
        // The server stays silent until it replies to something.
        self.traffic.lock().due -= 1;
    }
}

impl Traffic {
    /// A call is about to be sent.
    pub(crate) fn sends(self: &Arc<Self>) -> Due {
        let sent_at = SystemClock.now();
        let mut counts = self.lock();
        counts.due += 1;
        counts.silent_since.get_or_insert(sent_at);
        Due { traffic: self.clone(), sent_at }
    }

    /// For how long a reply has been due.
    pub(crate) fn silence(&self) -> Duration {
        self.lock().silent_since.map_or(Duration::ZERO, |since| SystemClock.now().since(since))
    }

    /// Whether a reply has arrived since then.
    pub(crate) fn replied_since(&self, since: Moment) -> bool {
        self.lock().replied.is_some_and(|replied| replied >= since)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Due {
    /// When it was sent.
    pub(crate) const fn sent_at(&self) -> Moment {
        self.sent_at
    }

    /// The server has replied.
    pub(crate) fn replied(self) {
        let mut counts = self.traffic.lock();
        let now = SystemClock.now();
        counts.replied = Some(now);
        counts.silent_since = (counts.due > 1).then_some(now);
    }

    /// The output of `reply`; `None` if the server has sent no reply at all for `timeout`, or not this one for several times that
    /// long. Time in which this thread was held up does not count.
    ///
    /// # Cancel safety
    /// As `reply`.
    pub(crate) async fn wait<F: Future>(&self, timeout: Duration, reply: F) -> Option<F::Output> {
        let mut reply = pin!(reply);
        let (mut deadline, longest) = (self.sent_at + timeout, self.sent_at + LONGEST * timeout);
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

/// How much longer to wait, at `now`, if the deadline was noticed late: the thread was held up, and a reply may have arrived that it
/// has not read yet.
pub(crate) fn grace(deadline: Moment, now: Moment, timeout: Duration) -> Duration {
    let late = now.since(deadline);
    if late > HELD_UP { late.min(timeout) } else { Duration::ZERO }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use futures_util::{FutureExt, future};

    #[test]
    fn places_go_to_releases_first_and_to_nobody_who_has_left() {
        let gate = Gate::new(1);
        let enter = |priority| Box::pin(gate.enter(priority));
        let (mut first, mut low, mut gone) =
            (enter(Priority::Low), enter(Priority::Low), enter(Priority::High));
        let permit = first.as_mut().now_or_never();
        assert!(permit.is_some());
        assert!(low.as_mut().now_or_never().is_none() && gone.as_mut().now_or_never().is_none());
        let (mut high, mut late) = (enter(Priority::High), enter(Priority::High));
        assert!(high.as_mut().now_or_never().is_none() && late.as_mut().now_or_never().is_none());
        drop(gone);
        drop(permit);
        assert!(low.as_mut().now_or_never().is_none(), "a release goes first");
        // It has a place now, and leaves without having used it.
        drop(high);
        let permit = late.as_mut().now_or_never();
        assert!(permit.is_some() && low.as_mut().now_or_never().is_none());
        drop(permit);
        drop(low.as_mut().now_or_never().unwrap());
        assert_eq!(gate.lock().free, 1);
    }

    #[test]
    fn renewals_wait_for_nothing_else() {
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
    async fn a_server_that_replies_to_others_is_not_silent() {
        const TIMEOUT: Duration = Duration::from_millis(100);
        let traffic = Arc::<Traffic>::default();
        let (first, second) = (traffic.sends(), traffic.sends());
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
        assert!(traffic.replied_since(began) && traffic.silence() >= TIMEOUT);
        drop(waiting);
        drop(second);
        assert!(traffic.silence() >= TIMEOUT, "until it replies");
        traffic.sends().replied();
        assert_eq!(traffic.silence(), Duration::ZERO);
    }

    #[test]
    fn a_thread_that_was_held_up_waits_as_long_again() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let (timeout, ms) = (Duration::from_millis(200), Duration::from_millis);
        assert_eq!(grace(at(500), at(502), timeout), ms(0));
        assert_eq!(grace(at(500), at(560), timeout), ms(60));
        assert_eq!(grace(at(500), at(5000), timeout), timeout);
    }
}

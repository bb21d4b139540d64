//! Virtual time: the events of a run, in order. Time passes only while nothing else is to be done.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use fastrand::Rng;
use polylock_core::sync::lock;

/// The nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;

/// The number of times that the clock may be read without an advance: the code that reads it more often never ends.
const MOST_READS: u64 = 1_000_000;

/// The clock of a run, in nanoseconds since its begin, and the events to come.
#[derive(Debug)]
pub struct Time(Mutex<State>);

struct State {
    now: u64,
    /// The number of times that the clock was read since it has advanced.
    reads: u64,
    is_stuck: bool,
    has_ended: bool,
    /// The order of events at the same time is random.
    ties: Rng,
    events: BTreeMap<Key, Event>,
}

/// The time of an event, then its random rank among those of that time.
type Key = (u64, u64);

enum Event {
    Wake(Waker),
    Call(Box<dyn FnOnce() + Send>),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("now", &self.now).finish_non_exhaustive()
    }
}

impl State {
    /// Returns the time.
    ///
    /// # Panics
    /// If the code that reads the clock runs without end at one time.
    fn read(&mut self) -> u64 {
        self.reads += 1;
        if self.reads > MOST_READS {
            (self.reads, self.is_stuck) = (0, true);
            panic!("an endless loop at {} ns", self.now);
        }
        self.now
    }

    fn insert(&mut self, at: u64, event: Event) -> Key {
        let at = at.max(self.now);
        let mut key = (at, self.ties.u64(..));
        while self.events.contains_key(&key) {
            key.1 = self.ties.u64(..);
        }
        self.events.insert(key, event);
        key
    }
}

impl Time {
    /// Creates a clock at zero. `ties` decides the order of events at the same time.
    #[must_use]
    pub fn new(ties: Rng) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            now: 0,
            reads: 0,
            is_stuck: false,
            has_ended: false,
            ties,
            events: BTreeMap::new(),
        })))
    }

    /// Returns the time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.lock().read()
    }

    /// Returns true if code ran without end at one time, and was stopped by a panic.
    #[must_use]
    pub fn was_stuck(&self) -> bool {
        self.lock().is_stuck
    }

    /// Calls `call` at `at`, unless the run has ended.
    pub fn at(&self, at: u64, call: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        if !state.has_ended {
            state.insert(at, Event::Call(Box::new(call)));
        }
    }

    /// Returns a future that completes at `at`.
    #[must_use]
    pub fn sleep_until(self: &Arc<Self>, at: u64) -> Sleep {
        Sleep { time: self.clone(), at, key: None }
    }

    /// Moves to the next event and executes it.
    pub fn advance(&self) {
        let mut state = self.lock();
        let Some(((at, _), event)) = state.events.pop_first() else { return };
        (state.now, state.reads) = (at, 0);
        drop(state);
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Call(call) => call(),
        }
    }

    /// Ends the run: drops all events, and those to come.
    pub fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        let events = std::mem::take(&mut state.events);
        drop(state);
        drop(events);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

/// A future that completes at a time.
#[derive(Debug)]
pub struct Sleep {
    time: Arc<Time>,
    at: u64,
    key: Option<Key>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { time, at, key } = &mut *self;
        let mut state = time.lock();
        if state.read() >= *at {
            return Poll::Ready(());
        }
        let event = Event::Wake(cx.waker().clone());
        match key {
            Some(key) => drop(state.events.insert(*key, event)),
            None => *key = Some(state.insert(*at, event)),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let event = self.time.lock().events.remove(&key);
            drop(event);
        }
    }
}

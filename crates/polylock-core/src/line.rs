//! The waiters of one process for a store that keeps no queue: they stand in line here, in order of arrival, and only the
//! first of each lock asks.
//!
//! Many who ask at once are so many requests for nothing, and where votes are counted they split them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{LockName, Request, RequestId, Wake, hub::Hub};

/// One line for each lock that somebody waits for, and the bell of those who stand there.
///
/// A store's claim calls [`join`](Self::join) and asks only if nobody stands before; its wait is [`rung`](Self::rung); a
/// claim that was granted and a release call [`leave`](Self::leave), which wakes the next.
#[derive(Debug, Default)]
pub struct Line {
    lines: Mutex<HashMap<LockName, VecDeque<RequestId>>>,
    hub: Hub,
}

impl Line {
    /// How many stand before `request`, which joins if it does not stand there yet. From now on news for it are kept.
    pub fn join(&self, request: &Request) -> usize {
        self.hub.enter(request);
        let mut lines = self.lock();
        let line = lines.entry(request.name.clone()).or_default();
        line.iter().position(|other| *other == request.id).unwrap_or_else(|| {
            line.push_back(request.id);
            line.len() - 1
        })
    }

    /// `request` stands there no more: it holds, or has given up. Who is first now because of that is woken. Whether it stood
    /// there.
    pub fn leave(&self, request: &Request) -> bool {
        self.hub.forget(request.id);
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(&request.name) else { return false };
        let Some(place) = line.iter().position(|other| *other == request.id) else { return false };
        line.remove(place);
        match line.front() {
            Some(next) if place == 0 => self.hub.wake(*next),
            Some(_) => {}
            None => drop(lines.remove(&request.name)),
        }
        true
    }

    /// Waits for news for `request`; see [`Hub::rung`].
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: news that have come are kept for the next call.
    pub async fn rung(&self, request: &Request) -> Wake {
        self.hub.rung(request.id).await
    }

    /// The lock may be free: wakes who is first.
    pub fn wake(&self, name: &LockName) {
        if let Some(first) = self.lock().get(name).and_then(VecDeque::front) {
            self.hub.wake(*first);
        }
    }

    /// Any lock may be free, for instance because news may have been lost: wakes everybody.
    pub fn wake_all(&self) {
        self.hub.ring_all();
    }

    /// Whether somebody waits for the lock.
    #[must_use]
    pub fn waits(&self, name: &LockName) -> bool {
        self.lock().contains_key(name)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, VecDeque<RequestId>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;
    use futures_util::FutureExt;
    use std::time::Duration;

    #[test]
    fn the_next_is_woken_when_the_first_has_left_and_nobody_else() {
        let line = Line::default();
        let request = || Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(1));
        let woken = |request| line.rung(request).now_or_never().is_some();
        let (a, b, c) = (request(), request(), request());
        assert_eq!([&a, &b, &c, &b].map(|request| line.join(request)), [0, 1, 2, 1]);
        assert!(line.leave(&b));
        assert_eq!([&a, &c].map(woken), [false; 2], "it was not the first");
        assert_eq!((line.leave(&a), line.leave(&a)), (true, false));
        assert_eq!([&c, &c].map(woken), [true, false], "told once");
        line.wake(&a.name);
        assert!(woken(&c) && line.waits(&a.name));
        assert!(line.leave(&c));
        assert!(!line.waits(&a.name) && line.hub.is_empty() && line.lock().is_empty());
    }
}

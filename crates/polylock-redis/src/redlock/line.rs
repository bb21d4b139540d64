//! The waiters of this process, in order of arrival: only the first of them asks the nodes.
//!
//! Many who ask at once split the votes, so that nobody gets a majority; and they would be so many commands.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use polylock_core::{LockName, Request, RequestId};

/// One line for each lock that somebody waits for.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<HashMap<LockName, VecDeque<RequestId>>>);

impl Line {
    /// How many stand before `request`, which joins if it does not stand there yet.
    pub(super) fn join(&self, request: &Request) -> usize {
        let mut lines = self.lock();
        let line = lines.entry(request.name.clone()).or_default();
        line.iter().position(|other| *other == request.id).unwrap_or_else(|| {
            line.push_back(request.id);
            line.len() - 1
        })
    }

    /// `request` stands there no more. `None` if it did not; else the one who is first now because of that, if any.
    pub(super) fn leave(&self, request: &Request) -> Option<Option<RequestId>> {
        let mut lines = self.lock();
        let line = lines.get_mut(&request.name)?;
        let place = line.iter().position(|other| *other == request.id)?;
        line.remove(place);
        if line.is_empty() {
            lines.remove(&request.name);
            return Some(None);
        }
        Some(if place == 0 { line.front().copied() } else { None })
    }

    /// Who is first.
    pub(super) fn first(&self, name: &LockName) -> Option<RequestId> {
        self.lock().get(name).and_then(|line| line.front().copied())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, VecDeque<RequestId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_core::Mode;
    use std::time::Duration;

    #[test]
    fn the_next_is_first_when_the_first_has_left() {
        let line = Line::default();
        let request = || Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(1));
        let (a, b, c) = (request(), request(), request());
        assert_eq!([&a, &b, &c, &b].map(|request| line.join(request)), [0, 1, 2, 1]);
        assert_eq!(line.leave(&b), Some(None), "it was not the first");
        assert_eq!(line.first(&a.name), Some(a.id));
        assert_eq!((line.leave(&a), line.leave(&a)), (Some(Some(c.id)), None));
        assert_eq!((line.leave(&c), line.first(&a.name)), (Some(None), None));
        assert!(line.lock().is_empty());
    }
}

//! How long a connection may be idle before the server, or a proxy in front of it, closes it.
//!
//! The driver reports the end of an idle connection only to the next statement, which then takes the time of a new connection, and is sent
//! twice. So where connections are closed, by the server's settings or as has turned out, those that were idle for long are tried before
//! a statement is sent on them, and some are [kept open](super::keeper).

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

/// A connection that ends sooner was not closed for being idle.
const SHORTEST: Duration = Duration::from_millis(500);

/// The least idle time after which a connection is tried.
const SHORTEST_SUSPECT: Duration = Duration::from_millis(100);

/// The number of connections in succession that were found open, after which the time is taken to be longer: connections also end because
/// a server is restarted.
const TRUSTED: u32 = 1000;

/// The least time after which connections are closed, as far as is known.
#[derive(Debug)]
pub(crate) struct IdleTime {
    closed_after_us: AtomicU64,
    /// The number of connections that were found open since it has changed.
    open: AtomicU32,
    shortened: Notify,
}

impl Default for IdleTime {
    fn default() -> Self {
        Self {
            closed_after_us: AtomicU64::new(u64::MAX),
            open: AtomicU32::default(),
            shortened: Notify::new(),
        }
    }
}

impl IdleTime {
    /// Returns the idle time from which a connection is suspect; `None` if none is closed, as far as is known.
    pub(crate) fn suspect(&self) -> Option<Duration> {
        let closed_after = self.closed_after_us.load(Ordering::Relaxed);
        (closed_after < u64::MAX).then(|| (Duration::from_micros(closed_after) / 2).max(SHORTEST_SUSPECT))
    }

    /// Records that a connection was closed while it was idle for this time.
    pub(crate) fn found_closed(&self, idle: Duration) {
        if idle >= SHORTEST {
            self.closed_after(idle);
        }
    }

    /// Records that connections are closed when they have been idle for this time.
    pub(crate) fn closed_after(&self, time: Duration) {
        let before = self.closed_after_us.fetch_min(micros(time), Ordering::Relaxed);
        self.open.store(0, Ordering::Relaxed);
        if micros(time) < before {
            self.shortened.notify_one();
        }
    }

    /// Waits until the time is shorter than it was.
    pub(crate) async fn shortened(&self) {
        self.shortened.notified().await;
    }

    /// Records that a suspect connection was open.
    pub(crate) fn found_open(&self, idle: Duration) {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        let closed_after = self.closed_after_us.load(Ordering::Relaxed);
        if micros(idle) > closed_after || open >= TRUSTED {
            self.closed_after_us.store(closed_after.saturating_mul(2), Ordering::Relaxed);
            self.open.store(0, Ordering::Relaxed);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn a_connection_is_suspect_after_half_the_time_after_which_one_was_closed() {
        let time = IdleTime::default();
        assert_eq!(time.suspect(), None);
        time.found_closed(ms(499));
        assert_eq!(time.suspect(), None, "the server was restarted");
        time.found_closed(ms(8000));
        time.found_closed(ms(6000));
        time.found_closed(ms(9000));
        assert_eq!(time.suspect(), Some(ms(3000)));
        time.closed_after(ms(400));
        assert_eq!(time.suspect(), Some(ms(200)));
        time.closed_after(ms(1));
        assert_eq!(time.suspect(), Some(SHORTEST_SUSPECT));
    }

    #[test]
    fn the_time_is_longer_if_connections_stay_open() {
        let time = IdleTime::default();
        time.found_closed(ms(2000));
        time.found_open(ms(1999));
        assert_eq!(time.suspect(), Some(ms(1000)));
        time.found_open(ms(2001));
        assert_eq!(time.suspect(), Some(ms(2000)));
        (1..TRUSTED).for_each(|_| time.found_open(ms(2001)));
        assert_eq!(time.suspect(), Some(ms(2000)));
        time.found_closed(ms(3999));
        (1..TRUSTED).for_each(|_| time.found_open(ms(2001)));
        assert_eq!(time.suspect(), Some(ms(3999) / 2), "they count from the last closed one");
        time.found_open(ms(2001));
        assert_eq!(time.suspect(), Some(ms(3999)));
    }
}

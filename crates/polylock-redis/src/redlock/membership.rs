//! Whether a server's votes count, as this client has observed it: a state machine without I/O.
//!
//! A server that was restarted without its data, or whose data was deleted, has forgotten its votes. It must not vote before every
//! lease that rested on a forgotten vote has expired. The evidence is a key in the server's memory (see `scripts/membership.lua`):
//! 1. the server loses its data, and with it the key;
//! 2. the first script of any client makes a new key with a random nonce; votes do not count from here on;
//! 3. a client receives the nonce at `R`. The data was lost before `R`;
//! 4. at `R` + the delay, which exceeds the longest lease, on the client's monotonic clock, all leases of before have expired. The
//!    next script confirms the key, if it still has that nonce, and from then on votes count for every client.
//!
//! The time counts from the arrival of the reply and never from the sending of the command, which may have been carried out much
//! later. A client that stops early leaves the time that it has observed in the key, and the next one continues from there: it
//! receives the key after that time was written, so the two times do not overlap.

use std::{fmt::Write as _, time::Duration};

use polylock_core::Moment;

/// What a client has observed of one server.
#[derive(Debug, Default)]
pub(super) struct Membership {
    seen: Option<Seen>,
}

/// A nonce whose votes do not count yet.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    nonce: String,
    /// The run id of the server process that returned it.
    run: String,
    /// For how long others had observed it.
    before: Duration,
    /// When the first reply with it arrived here.
    since: Moment,
}

impl Seen {
    fn age(&self, now: Moment) -> Duration {
        self.before + now.since(self.since)
    }
}

/// The outcome of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Observed {
    /// The server's votes count.
    Counts,
    /// They do not count yet.
    Delayed {
        /// Whether this is the first reply that says so.
        begins: bool,
    },
}

impl Membership {
    /// The argument `observed` of a script that is sent at `now` to the server process `run`. `fresh` is a random nonce.
    pub(super) fn argument(&self, run: &str, fresh: &str, delay: Duration, now: Moment) -> String {
        let seen = self.seen.as_ref().filter(|seen| seen.run == run);
        let (nonce, age) = seen.map_or(("-", Duration::ZERO), |seen| (&seen.nonce, seen.age(now)));
        let mut argument = format!("{fresh} {nonce}");
        for time in [age, delay] {
            write!(argument, " {}", time.as_millis()).ok();
        }
        argument
    }

    /// The argument with which an operator ends the delay at once; `None` if the server's votes count.
    pub(super) fn admission(&self, run: &str, fresh: &str, delay: Duration) -> Option<String> {
        let seen = self.seen.as_ref().filter(|seen| seen.run == run)?;
        let delay = delay.as_millis();
        Some(format!("{fresh} {} {delay} {delay}", seen.nonce))
    }

    /// The server process `run` has answered with this `membership`, and the reply arrived at `now`.
    pub(super) fn observe(&mut self, run: &str, membership: &str, now: Moment) -> Observed {
        let Some((nonce, age)) = membership.split_once(' ') else {
            self.seen = None;
            return Observed::Counts;
        };
        if self.seen.as_ref().is_some_and(|seen| seen.nonce == nonce && seen.run == run) {
            return Observed::Delayed { begins: false };
        }
        // A server whose age cannot be read is taken for a new one.
        let before = Duration::from_millis(age.parse().unwrap_or(0));
        self.seen = Some(Seen { nonce: nonce.to_owned(), run: run.to_owned(), before, since: now });
        Observed::Delayed { begins: true }
    }

    /// How long it takes until the server's votes count; `None` if they do, or if nothing is known.
    pub(super) fn remaining(&self, delay: Duration, now: Moment) -> Option<Duration> {
        self.seen.as_ref().map(|seen| delay.saturating_sub(seen.age(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(7);

    fn at(ms: u64) -> Moment {
        Moment::default() + Duration::from_millis(ms)
    }

    #[test]
    fn the_time_counts_from_the_arrival_of_the_first_reply() {
        let mut member = Membership::default();
        assert_eq!(member.argument("r1", "f", DELAY, at(0)), "f - 0 7000");
        assert_eq!(member.observe("r1", "n1 0", at(4400)), Observed::Delayed { begins: true });
        assert_eq!(member.observe("r1", "n1 0", at(5000)), Observed::Delayed { begins: false });
        assert_eq!(member.argument("r1", "f", DELAY, at(6400)), "f n1 2000 7000");
        assert_eq!(member.remaining(DELAY, at(6400)), Some(Duration::from_secs(5)));
        assert_eq!(member.observe("r1", "", at(11_500)), Observed::Counts);
        assert_eq!(member.remaining(DELAY, at(11_500)), None);
    }

    #[test]
    fn another_nonce_or_another_run_begins_anew() {
        let mut member = Membership::default();
        member.observe("r1", "n1 0", at(0));
        assert_eq!(member.observe("r1", "n2 0", at(3000)), Observed::Delayed { begins: true });
        assert_eq!(member.argument("r1", "f", DELAY, at(4000)), "f n2 1000 7000");
        // The server was restarted since: what was observed of the run before is not sent to this one.
        assert_eq!(member.argument("r2", "f", DELAY, at(4000)), "f - 0 7000");
        assert_eq!(member.observe("r2", "n2 0", at(5000)), Observed::Delayed { begins: true });
        assert_eq!(member.argument("r2", "f", DELAY, at(5500)), "f n2 500 7000");
    }

    #[test]
    fn a_client_continues_from_the_time_that_others_have_observed() {
        let mut member = Membership::default();
        member.observe("r1", "n1 5000", at(100));
        assert_eq!(member.argument("r1", "f", DELAY, at(1100)), "f n1 6000 7000");
        // What another client has written meanwhile overlaps with this client's own observation.
        member.observe("r1", "n1 6500", at(1200));
        assert_eq!(member.argument("r1", "f", DELAY, at(1300)), "f n1 6200 7000");
    }

    #[test]
    fn an_operator_can_end_the_delay() {
        let mut member = Membership::default();
        assert_eq!(member.admission("r1", "f", DELAY), None);
        member.observe("r1", "n1 0", at(0));
        assert_eq!(member.admission("r1", "f", DELAY).as_deref(), Some("f n1 7000 7000"));
        assert_eq!(member.admission("r2", "f", DELAY), None);
    }
}

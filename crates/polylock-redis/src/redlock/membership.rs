//! The membership of a server, as this client has observed it: its votes count, or do not count yet. A state machine without I/O.
//!
//! A server that was restarted without its data, or has had its data deleted, has forgotten its votes. It must not vote before every lease
//! that rested on a forgotten vote has expired. The evidence is a key in the server's memory (see `scripts/membership.lua`):
//! 1. the server loses its data, and with it the key;
//! 2. the first script of any client makes a new key with a random nonce; votes do not count from here on;
//! 3. a client receives the nonce at `R`. The data was lost before `R`;
//! 4. at `R` + the delay, which exceeds the longest lease, on the client's monotonic clock, all earlier leases have expired. The
//!    next script confirms the key if it still has that nonce, and from then on votes count for every client.
//!
//! The time counts from the arrival of the reply and never from the sending of the command, which may have been executed much later. A
//! client that stops early leaves the time that it has observed in the key, and the next client continues from there: it receives the key
//! after that time was written, so the two times do not overlap. It also leaves `R`, by the clock that it shares with the other processes of
//! its machine: a later one of them counts from there, although no process ran in between.
//!
//! A client has several connections to a server: that of the I/O thread, and those of its callers' runtimes. All lead to one server process
//! (see `node.rs`), and their replies may arrive in another order than the server has sent them:
//! 1. connection A: the server replies that its votes count, or with a nonce;
//! 2. the server loses its data, and has a new nonce;
//! 3. connection B: the client receives the new nonce, and then the reply of step 1 on A.
//!
//! The reply of step 1 replaces the observation. A vote that came with it was given before the loss and may count: no vote of another
//! client counts until the delay after the loss has passed, which is longer than the lease that rests on this vote. The time that was
//! observed of the new nonce is forgotten, and is counted from the next reply with it: reordered replies lengthen a delay, and never
//! shorten it.

use std::{fmt::Write as _, time::Duration};

use polylock_core::Moment;

const NANOS_PER_MS: u64 = 1_000_000;

/// The observation of one server by a client.
#[derive(Debug, Default)]
pub(super) struct Membership {
    observation: Option<Observation>,
}

/// The nonce of a server with votes that do not count yet.
#[derive(Debug, PartialEq, Eq)]
struct Observation {
    nonce: String,
    /// The run id of the server process that returned it.
    run: String,
    /// The time for which other clients, or an earlier process of this machine, had observed it.
    before: Duration,
    /// The arrival time of the first reply with it at this client.
    since: Moment,
}

impl Observation {
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
        /// True for the first reply of the delay.
        is_first: bool,
    },
}

impl Membership {
    /// Returns the argument `observed` of a script that is sent at `now` to the server process `run`. `fresh` is a random nonce.
    pub(super) fn argument(&self, run: &str, fresh: &str, delay: Duration, now: Moment) -> String {
        let observation = self.observation.as_ref().filter(|observation| observation.run == run);
        let (nonce, age) = observation
            .map_or(("-", Duration::ZERO), |observation| (&observation.nonce, observation.age(now)));
        let mut argument = format!("{fresh} {nonce}");
        for time in [age, delay] {
            write!(argument, " {}", time.as_millis()).ok();
        }
        argument
    }

    /// Returns the argument with which an operator ends the delay at once; `None` if the server's votes count.
    pub(super) fn admission_argument(&self, run: &str, fresh: &str, delay: Duration) -> Option<String> {
        let observation = self.observation.as_ref().filter(|observation| observation.run == run)?;
        let delay = delay.as_millis();
        Some(format!("{fresh} {} {delay} {delay}", observation.nonce))
    }

    /// Returns the argument `witness` of a script that is sent to the server process `run`: the identity of the clock of this machine, and the
    /// time at which the nonce has arrived.
    pub(super) fn witness(&self, run: &str, clock: Option<&str>) -> String {
        let observation = self.observation.as_ref().filter(|observation| observation.run == run);
        let since = observation.map_or_else(Moment::default, |observation| observation.since);
        clock.map_or_else(
            || "-".to_owned(),
            |clock| format!("{clock} {}", since.as_nanos().div_ceil(NANOS_PER_MS)),
        )
    }

    /// Records that the server process `run` has replied with this `membership`, and that the reply arrived at `now`.
    pub(super) fn observe(&mut self, run: &str, membership: &str, now: Moment) -> Observed {
        let Some((nonce, age)) = membership.split_once(' ') else {
            self.observation = None;
            return Observed::Counts;
        };
        if self
            .observation
            .as_ref()
            .is_some_and(|observation| observation.nonce == nonce && observation.run == run)
        {
            return Observed::Delayed { is_first: false };
        }
        // Times that can't be parsed count as zero.
        let (age, since) = age.split_once(' ').unwrap_or((age, ""));
        let since = since.parse().map_or(now, |ms: u64| Moment::from_nanos(ms.saturating_mul(NANOS_PER_MS)));
        let before = Duration::from_millis(age.parse().unwrap_or(0)).max(now.since(since));
        self.observation =
            Some(Observation { nonce: nonce.to_owned(), run: run.to_owned(), before, since: now });
        Observed::Delayed { is_first: true }
    }

    /// Returns the time until the server's votes count; `None` if they count, or if nothing is known.
    pub(super) fn remaining(&self, delay: Duration, now: Moment) -> Option<Duration> {
        self.observation.as_ref().map(|observation| delay.saturating_sub(observation.age(now)))
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
        assert_eq!(member.observe("r1", "n1 0", at(4400)), Observed::Delayed { is_first: true });
        assert_eq!(member.observe("r1", "n1 0", at(5000)), Observed::Delayed { is_first: false });
        assert_eq!(member.argument("r1", "f", DELAY, at(6400)), "f n1 2000 7000");
        assert_eq!(member.remaining(DELAY, at(6400)), Some(Duration::from_secs(5)));
        assert_eq!(member.observe("r1", "", at(11_500)), Observed::Counts);
        assert_eq!(member.remaining(DELAY, at(11_500)), None);
    }

    #[test]
    fn another_nonce_or_run_id_restarts_the_delay() {
        let mut member = Membership::default();
        member.observe("r1", "n1 0", at(0));
        assert_eq!(member.observe("r1", "n2 0", at(3000)), Observed::Delayed { is_first: true });
        assert_eq!(member.argument("r1", "f", DELAY, at(4000)), "f n2 1000 7000");
        // The server was restarted: the observation of the former run is not sent to this one.
        assert_eq!(member.argument("r2", "f", DELAY, at(4000)), "f - 0 7000");
        assert_eq!(member.observe("r2", "n2 0", at(5000)), Observed::Delayed { is_first: true });
        assert_eq!(member.argument("r2", "f", DELAY, at(5500)), "f n2 500 7000");
    }

    #[test]
    fn a_client_continues_from_the_time_that_others_have_observed() {
        let mut member = Membership::default();
        member.observe("r1", "n1 5000", at(100));
        assert_eq!(member.argument("r1", "f", DELAY, at(1100)), "f n1 6000 7000");
        // The time that another client has written overlaps with this client's own observation.
        member.observe("r1", "n1 6500", at(1200));
        assert_eq!(member.argument("r1", "f", DELAY, at(1300)), "f n1 6200 7000");
    }

    #[test]
    fn a_process_counts_from_the_arrival_at_an_earlier_one_of_its_machine() {
        let mut first = Membership::default();
        assert_eq!(first.witness("r1", Some("c")), "c 0");
        first.observe("r1", "n1 0 ", at(100));
        assert_eq!(first.witness("r1", Some("c")), "c 100");
        assert_eq!((first.witness("r2", Some("c")), first.witness("r1", None)), ("c 0".into(), "-".into()));
        let mut later = Membership::default();
        later.observe("r1", "n1 20 100", at(6000));
        assert_eq!(later.argument("r1", "f", DELAY, at(6500)), "f n1 6400 7000");
        // The others have observed it for longer.
        later = Membership::default();
        later.observe("r1", "n1 6000 5900", at(6000));
        assert_eq!(later.argument("r1", "f", DELAY, at(6500)), "f n1 6500 7000");
        // A time to come, of a clock that was damaged in the store.
        later = Membership::default();
        later.observe("r1", "n1 0 9000", at(6000));
        assert_eq!(later.argument("r1", "f", DELAY, at(6500)), "f n1 500 7000");
    }

    #[test]
    fn replies_that_arrive_late_on_another_connection_do_not_shorten_the_delay() {
        let mut member = Membership::default();
        for late in ["", "n1 6900"] {
            assert_eq!(member.observe("r1", "n2 0", at(1000)), Observed::Delayed { is_first: true });
            member.observe("r1", late, at(5000));
            assert_ne!(member.argument("r1", "f", DELAY, at(5500)), "f n2 4500 7000");
            // The server has kept the greatest age that it has received, which the client had observed before.
            assert_eq!(member.observe("r1", "n2 3000", at(6000)), Observed::Delayed { is_first: true });
            assert_eq!(member.argument("r1", "f", DELAY, at(6500)), "f n2 3500 7000");
            member = Membership::default();
        }
    }

    #[test]
    fn an_operator_can_end_the_delay() {
        let mut member = Membership::default();
        assert_eq!(member.admission_argument("r1", "f", DELAY), None);
        member.observe("r1", "n1 0", at(0));
        assert_eq!(member.admission_argument("r1", "f", DELAY).as_deref(), Some("f n1 7000 7000"));
        assert_eq!(member.admission_argument("r2", "f", DELAY), None);
    }
}

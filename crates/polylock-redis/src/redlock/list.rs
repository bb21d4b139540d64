//! The list of servers and the settings of this client, which the servers compare with those of other clients.
//!
//! Two clients exclude each other if every majority of one list shares a server with every majority of the other, and if both have the same
//! settings: a client with a smaller `max_ttl` would end the delay of a server that has forgotten a longer lease. A client can't see the
//! settings of the others. So each server records the lists that are in use (`scripts/member.lua`):
//! 1. a client learns the identities of its servers, and compares its list at each of them. A server with a list in use that does not agree refuses
//!    it, and the client claims nothing;
//! 2. if none has refused it, the client has it recorded by all before its first claim. Each keeps it for [`keep`];
//! 3. the client repeats that after a quarter of that time while it claims or holds locks. After half of it, a claim waits for it. The servers
//!    that accept the list of a holder go on recording it, even if another one refuses it. So the record outlasts every lease of the client;
//! 4. of two clients with lists that do not agree, the second one is refused by each server that both can reach, and recorded by none. If they
//!    begin at the same time, both may be refused until the servers have forgotten one of them.
//!
//! The names of servers are not compared: clients may reach a server by different ones. Its identity is new when it was restarted or has lost
//! its data. Until the records with the former one have ended, it is not known, and may be any server of another list:
//! 1. a client learns an identity, and the server is restarted;
//! 2. the client uses it for half of the time of a record, and then does not know it any more;
//! 3. its last message with it arrives late, and the record lasts for its time;
//! 4. the server has had its new identity for twice that time, and tells it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use polylock_core::{Moment, duration, sync::lock};

use super::config::{Config, Restart};
use crate::distinct::Distinct;

/// The part of the time for which servers keep a list that does not depend on `max_ttl`: messages are late, and clocks drift.
const MARGIN: Duration = Duration::from_secs(2);

/// The least pause before a list that was refused is sent again, and the greatest part that chance adds: two programs that have refused each other
/// do not meet again.
const RETRY: Duration = Duration::from_secs(1);

/// Returns the time for which a server keeps a list after its use.
const fn keep(max_ttl: Duration) -> Duration {
    max_ttl.saturating_mul(2).saturating_add(MARGIN)
}

/// The list and the settings of this client.
#[derive(Debug)]
pub(super) struct List {
    /// The settings that all clients must have in common.
    settings: String,
    /// The time for which a server keeps it.
    pub(super) keep: Duration,
    /// Held while a claim waits until the list is recorded.
    pub(super) turn: tokio::sync::Mutex<()>,
    connected: Arc<Distinct>,
    state: Mutex<State>,
    is_refused: AtomicBool,
}

#[derive(Debug)]
struct State {
    servers: Vec<Server>,
    /// The time at which it is sent again.
    due: Moment,
    /// The number of connections when it was sent.
    connections: u64,
    /// When it was last sent and a majority recorded it.
    recorded: Option<Moment>,
}

/// A server of the list.
#[derive(Debug, Clone, Default)]
struct Server {
    address: String,
    /// Empty if it is not known.
    identity: String,
    /// The time at which the server was last asked for it, and has replied.
    learned: Moment,
    /// When the refused message was sent, and the reason.
    refusal: Option<(Moment, Refusal)>,
}

#[derive(Debug, Clone)]
enum Refusal {
    /// This list is in use, with which the one of this client does not agree.
    Other(String),
    /// This server of the list has the same identity.
    Twin(usize),
}

impl List {
    /// Creates the list of the servers with these addresses, each of which is to be in `connected` when it is reached.
    pub(super) fn new(
        config: &Config,
        addresses: impl IntoIterator<Item = String>,
        connected: Arc<Distinct>,
    ) -> Self {
        let restart = match config.restart {
            Restart::Delay => "delay",
            Restart::Trust => "trust",
        };
        let server = |address| Server { address, ..Server::default() };
        let servers = addresses.into_iter().map(server).collect();
        Self {
            settings: format!("{restart}:{}", config.max_ttl.as_millis()),
            keep: keep(config.max_ttl),
            connected,
            turn: tokio::sync::Mutex::default(),
            state: Mutex::new(State { servers, due: Moment::default(), connections: 0, recorded: None }),
            is_refused: AtomicBool::new(false),
        }
    }

    /// Returns the list as it is sent to the servers at `now`.
    pub(super) fn text(&self, now: Moment) -> String {
        let mut state = self.state();
        for server in &mut state.servers {
            if now.since(server.learned) > self.keep / 2 {
                server.identity.clear();
            }
        }
        let known: BTreeSet<&str> = state.servers.iter().map(|server| &*server.identity).collect();
        let known: Vec<&str> = known.into_iter().filter(|identity| !identity.is_empty()).collect();
        format!("{} {} {}", self.settings, state.servers.len(), known.join(","))
    }

    /// Returns true if the list is to be sent at `now`, and records that it is: its time has come, or there is a new connection since.
    pub(super) fn begin(&self, now: Moment) -> bool {
        let (mut state, connections) = (self.state(), self.connected.connections());
        let is_due = now >= state.due || connections != state.connections;
        if is_due {
            (state.connections, state.due) = (connections, now + self.keep / 4);
        }
        is_due
    }

    /// Returns true if the servers keep the list for longer than a lease that is granted at `now`.
    pub(super) fn is_recorded(&self, now: Moment) -> bool {
        self.state().recorded.is_some_and(|sent| now.since(sent) <= self.keep / 2)
    }

    /// Records that a majority has recorded the list sent at `sent`.
    pub(super) fn recorded(&self, sent: Moment) {
        self.state().recorded = Some(sent);
    }

    /// Records the identity of a server, which has replied to a message sent at `sent`. It is empty if the server is not known for long enough.
    pub(super) fn learned(&self, server: usize, identity: &str, sent: Moment) {
        Self::learn(&mut self.state(), server, identity, sent);
    }

    /// Records that a server has accepted the list sent at `sent`, and its identity.
    pub(super) fn accepted(&self, server: usize, identity: &str, sent: Moment) {
        let mut state = self.state();
        if state.servers[server].refusal.as_ref().is_none_or(|(refused, _)| *refused <= sent) {
            Self::learn(&mut state, server, identity, sent);
            let has_it = |other: &usize| *other != server && state.servers[*other].identity == identity;
            let twin = (0..state.servers.len()).find(has_it).filter(|_| !identity.is_empty());
            state.servers[server].refusal = twin.map(|twin| (sent, Refusal::Twin(twin)));
            self.update(&mut state, sent);
        }
    }

    /// Records that a server has refused the list sent at `sent` because `other` is in use.
    pub(super) fn refused(&self, server: usize, other: &str, sent: Moment) {
        let mut state = self.state();
        state.servers[server].refusal = Some((sent, Refusal::Other(other.to_owned())));
        self.update(&mut state, sent);
    }

    /// Records that a server has not replied: another one may have its address now.
    pub(super) fn forget(&self, server: usize) {
        self.state().servers[server].identity.clear();
    }

    fn learn(state: &mut State, server: usize, identity: &str, sent: Moment) {
        let server = &mut state.servers[server];
        if sent >= server.learned {
            identity.clone_into(&mut server.identity);
            server.learned = sent;
        }
    }

    fn update(&self, state: &mut State, sent: Moment) {
        let is_refused = state.servers.iter().any(|server| server.refusal.is_some());
        self.is_refused.store(is_refused, Ordering::Release);
        if is_refused {
            state.due = state.due.min(sent + RETRY + RETRY.mul_f64(fastrand::f64()));
        }
    }

    /// Returns a server that has refused the list, and what is to be done about it; `None` if none has. A refusal counts for as long as a server
    /// keeps a list: the server may have ended since, and the other program, too.
    pub(super) fn refusal(&self, now: Moment) -> Option<(usize, String)> {
        if !self.is_refused.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state();
        let refused = |(at, server): (usize, &Server)| {
            let (sent, refusal) = server.refusal.clone()?;
            (now.since(sent) <= self.keep).then_some((at, refusal))
        };
        let (at, refusal) = state.servers.iter().enumerate().find_map(refused)?;
        let advice = match refusal {
            Refusal::Other(other) => self.explain(&state, &other),
            Refusal::Twin(twin) => format!(
                "{} and {} are the same server, or one has a copy of the other's data: name a server once, and start a new one without data",
                state.servers[twin].address, state.servers[at].address
            ),
        };
        Some((at, advice))
    }

    fn explain(&self, state: &State, other: &str) -> String {
        let mut parts = other.splitn(3, ' ');
        let mut part = || parts.next().unwrap_or_default();
        let (settings, size, known) = (part(), part(), part());
        let keep = max_ttl(settings).map_or(self.keep, keep);
        let end = format!("the server forgets a program {} after its end", duration::format(keep));
        if settings != self.settings {
            return format!(
                "this program has {}, and another one that uses the server has {}: use the same values in all programs ({end})",
                shown(&self.settings),
                shown(settings)
            );
        }
        let is_shared = |server: &&Server| {
            !server.identity.is_empty() && known.split(',').any(|id| id == server.identity)
        };
        let shared: Vec<&str> =
            state.servers.iter().filter(is_shared).map(|server| &*server.address).collect();
        let shared = if shared.is_empty() { String::new() } else { format!(" with {}", shared.join(", ")) };
        format!(
            "this program has a list of {} servers, and another one that uses the server has one of {size}{shared}: a majority of one need not \
             share a server with a majority of the other. Use the same list in all programs, and change it by one server at a time ({end})",
            state.servers.len()
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Returns the settings as they are written in a URL.
fn shown(settings: &str) -> String {
    let restart = settings.split(':').next().unwrap_or(settings);
    let max_ttl = max_ttl(settings).map_or_else(|| "?".to_owned(), duration::format);
    format!("polylock.max_ttl={max_ttl} and polylock.restart={restart}")
}

fn max_ttl(settings: &str) -> Option<Duration> {
    settings.split_once(':').and_then(|(_, ms)| ms.parse().ok()).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const START: Moment = Moment::from_nanos(100_000_000_000);

    fn list() -> List {
        let config = Config::new("redlock://a,b,c?polylock.max_ttl=10s").unwrap();
        List::new(&config, ["a", "b", "c"].map(str::to_owned), Arc::default())
    }

    #[test]
    fn the_list_names_the_identities_of_the_servers_that_reply() {
        let list = list();
        assert_eq!(list.text(START), "delay:10000 3 ");
        list.accepted(0, "y", START);
        list.accepted(2, "x", START);
        assert_eq!(list.text(START), "delay:10000 3 x,y");
        list.forget(0);
        assert_eq!(list.text(START), "delay:10000 3 x");
        assert_eq!(list.text(START + list.keep / 2), "delay:10000 3 x");
        let long_after = START + list.keep / 2 + Duration::from_nanos(1);
        assert_eq!(list.text(long_after), "delay:10000 3 ", "it may have been restarted since");
        assert!(list.refusal(START).is_none());
    }

    #[test]
    fn it_is_sent_in_intervals_and_after_a_new_connection() {
        let (list, start) = (list(), START);
        let again = start + list.keep / 4;
        assert!(list.begin(start) && !list.is_recorded(start));
        list.recorded(start);
        assert!(list.is_recorded(start + list.keep / 2) && !list.is_recorded(again + list.keep / 2));
        assert!(!list.begin(again - Duration::from_millis(1)) && list.begin(again) && !list.begin(again));
        list.connected.check("a", &Arc::from("1")).unwrap();
        assert!(list.begin(again) && !list.begin(again));
        list.refused(0, "delay:10000 5 ", again);
        assert!(!list.begin(again + RETRY - Duration::from_millis(1)) && list.begin(again + 2 * RETRY));
    }

    #[test]
    fn a_refusal_says_what_differs_and_ends_when_the_server_accepts() {
        let list = list();
        list.accepted(0, "x", START);
        list.refused(1, "delay:10000 5 x,z", START);
        let (at, advice) = list.refusal(START).unwrap();
        assert_eq!(at, 1);
        assert!(
            advice.contains("a list of 3 servers, and another one that uses the server has one of 5 with a:"),
            "{advice}"
        );
        list.refused(1, "trust:60000 3 x", START);
        let (_, advice) = list.refusal(START).unwrap();
        let [ours, other] = [
            "this program has polylock.max_ttl=10s and polylock.restart=delay",
            "has polylock.max_ttl=1m and polylock.restart=trust",
        ];
        assert!(
            advice.contains(ours) && advice.contains(other) && advice.contains("2m 2s after"),
            "{advice}"
        );
        list.refused(1, "damaged", START);
        assert!(list.refusal(START).unwrap().1.contains("polylock.max_ttl=?"));
        assert!(list.refusal(START + list.keep).is_some());
        assert!(list.refusal(START + list.keep + RETRY).is_none(), "the other program may have ended");
        let later = START + RETRY;
        list.refused(1, "delay:10000 5 x,z", later);
        list.accepted(1, "", START);
        assert!(list.refusal(later).is_some(), "an earlier message, whose reply is late");
        list.learned(1, "", later);
        assert!(list.refusal(later).is_some(), "no list was compared");
        list.accepted(1, "", later);
        assert!(list.refusal(later).is_none());
    }

    #[test]
    fn two_servers_with_one_identity_are_refused() {
        let list = list();
        list.accepted(0, "", START);
        list.accepted(1, "", START);
        assert!(list.refusal(START).is_none());
        list.accepted(1, "x", START);
        list.accepted(2, "x", START);
        assert!(list.refusal(START).unwrap().1.starts_with("b and c are the same server"));
        list.accepted(2, "y", START);
        assert!(list.refusal(START).is_none());
    }
}

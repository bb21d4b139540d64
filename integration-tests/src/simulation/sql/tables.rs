//! The tables of the stores, and what a checker reads in them.

use std::collections::BTreeMap;

use polylock_core::{FencingToken, LockName, Mode};

use crate::simulation::{
    live_entry::LiveEntry,
    plan::{Planted, StoreKind},
};

/// A name, and a slot or a request.
pub type Key = (Vec<u8>, Vec<u8>);

/// The tables.
#[derive(Debug)]
pub struct Database {
    /// The time of the server's clock, in microseconds since 1970.
    pub now_us: i64,
    /// All grants, for the checks.
    pub grants: Vec<Grant>,
    /// The notifications of the present call, which are sent once it is committed: the channels and the payloads.
    pub notifications: Vec<(String, Payload)>,
    /// True for PostgreSQL.
    pub(super) is_postgres: bool,
    planted: Option<Planted>,
    /// The last token that was drawn. MySQL draws the queue positions from the same numbers, of which it has one for each shard of the names.
    pub(super) tokens: i64,
    /// The last queue position that PostgreSQL has drawn.
    pub(super) places: i64,
    /// The holds by name and slot.
    pub(super) holds: BTreeMap<Key, Entry>,
    /// The waiters by name and queue position.
    pub(super) waiters: BTreeMap<(Vec<u8>, i64), Entry>,
    /// The notices of the requests whose holds were removed by force, and empty ones of those whose claims are refused after their release; with
    /// the times until which they are kept.
    pub(super) broken: BTreeMap<Key, Notice>,
}

/// The payload of a notification.
#[derive(Debug)]
pub enum Payload {
    /// A grant: the ticket, the queue position, the token, and the rest of the lease.
    Grant([i64; 4]),
    /// Anything else.
    Other(String),
}

/// A notice, and the time until which it is kept.
type Notice = (Vec<u8>, i64);

/// A hold or a waiter.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The request.
    pub request: Vec<u8>,
    /// The token; the queue position of a waiter.
    pub number: i64,
    /// The mode; two of them while a conversion waits.
    pub mode: i64,
    /// The owner.
    pub owner: String,
    /// The end of its lease.
    pub expires_us: i64,
    /// The notice of a break; an empty one if the hold is parked.
    pub notice: Option<Vec<u8>>,
    /// The channel and the ticket that PostgreSQL notifies of a grant.
    pub notifies: (String, i64),
}

impl Entry {
    pub(super) const fn is_live(&self, now: i64) -> bool {
        self.expires_us > now
    }
}

/// A grant.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The time of the server's clock.
    pub at_us: i64,
    /// The lock.
    pub name: LockName,
    /// The token.
    pub token: i64,
    /// The request.
    pub request: Vec<u8>,
    /// The owner, which is the process in one of its lives.
    pub owner: String,
}

/// Returns the modes that conflict with one of these.
#[must_use]
pub fn conflicts(modes: i64) -> i64 {
    let bits = (0..u8::BITS).map(|bit| 1 << bit).filter(|bit| modes & i64::from(*bit) != 0);
    bits.filter_map(Mode::from_bit).fold(0, |all, mode| all | i64::from(mode.conflicts()))
}

/// Returns a text.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn name_of(bytes: &[u8]) -> LockName {
    LockName::from_store(text(bytes)).unwrap_or_else(|error| unreachable!("{error}"))
}

impl Database {
    /// Creates tables without rows.
    #[must_use]
    pub const fn new(store: StoreKind, planted: Option<Planted>) -> Self {
        Self {
            now_us: 0,
            grants: Vec::new(),
            notifications: Vec::new(),
            is_postgres: matches!(store, StoreKind::Postgres),
            planted,
            tokens: 0,
            places: 0,
            holds: BTreeMap::new(),
            waiters: BTreeMap::new(),
            broken: BTreeMap::new(),
        }
    }

    /// Returns true if the server has one of these bugs.
    pub(super) fn has(&self, planted: &[Planted]) -> bool {
        self.planted.is_some_and(|own| planted.contains(&own))
    }

    pub(super) fn holds_of<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a Entry> {
        self.holds.iter().filter(move |((of, _), _)| of == name).map(|(_, hold)| hold)
    }

    pub(super) fn waiters_of<'a>(&'a self, name: &'a [u8]) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.waiters.iter().filter(move |((of, _), _)| of == name).map(|(_, waiter)| waiter)
    }

    /// Returns the key of the hold of `request`, whether it is live or not, if it has one. Its slot is its own or that of exclusive holds.
    pub(super) fn key_of(&self, (name, request): (&[u8], &[u8])) -> Option<Key> {
        let keys = [&[], request].map(|slot| (name.to_vec(), slot.to_vec()));
        keys.into_iter().find(|key| self.holds.get(key).is_some_and(|hold| hold.request == request))
    }

    pub(super) fn delete_expired_holds(&mut self, name: &[u8]) {
        let now = self.now_us;
        self.holds.retain(|(of, _), hold| of != name || hold.is_live(now));
    }

    /// Deletes all expired rows.
    pub(super) fn sweep(&mut self) {
        let now = self.now_us;
        self.holds.retain(|_, hold| hold.is_live(now));
        self.waiters.retain(|_, waiter| waiter.is_live(now));
        self.broken.retain(|_, (_, until)| *until > now);
    }

    /// Inserts a hold with a new token. Returns the token.
    pub(super) fn grant(&mut self, (name, slot): (&[u8], Vec<u8>), mut hold: Entry) -> i64 {
        self.tokens += 1;
        hold.number = self.tokens;
        self.grants.push(Grant {
            at_us: self.now_us,
            name: name_of(name),
            token: hold.number,
            request: hold.request.clone(),
            owner: hold.owner.clone(),
        });
        self.holds.insert((name.to_vec(), slot), hold);
        self.tokens
    }

    /// Draws a queue position.
    pub(super) fn draw_place(&mut self, name: &[u8]) -> i64 {
        if self.is_postgres {
            self.places += 1;
            return self.places;
        }
        self.tokens += 1;
        let last = self.waiters_of(name).map(|waiter| waiter.number).max().unwrap_or(0);
        self.tokens.max(last + 1)
    }

    /// A restart. The tables are durable.
    pub fn restart(&mut self) {
        if self.has(&[Planted::MysqlLostState]) {
            self.holds.clear();
            self.waiters.clear();
        }
    }

    /// Returns the time at which the hold of `name` with `token` expires; `None` if it has ended.
    #[must_use]
    pub fn expires(&self, name: &LockName, token: FencingToken) -> Option<i64> {
        let mut holds = self.holds_of(name.as_str().as_bytes());
        Some(holds.find(|hold| hold.number == token.as_i64())?.expires_us)
    }

    /// Returns the live entries.
    #[must_use]
    pub fn live(&self) -> Vec<LiveEntry> {
        let is_live = |entry: &&Entry| entry.is_live(self.now_us);
        let holds = self.holds.iter().filter(|(_, hold)| is_live(hold)).map(|((name, _), hold)| LiveEntry {
            name: name_of(name),
            token: Some(hold.number.cast_unsigned()),
            is_free_to_go: false,
            owner: Some(hold.owner.clone()),
        });
        let waiters =
            self.waiters.iter().filter(|(_, waiter)| is_live(waiter)).map(|((name, seq), waiter)| {
                let ahead = self.waiters_of(name).filter(|other| other.number < *seq).filter(is_live);
                let others = ahead.chain(self.holds_of(name).filter(is_live));
                let is_free_to_go =
                    others.fold(0, |all, other| all | conflicts(other.mode)) & waiter.mode == 0;
                let owner = Some(waiter.owner.clone());
                LiveEntry { name: name_of(name), token: None, is_free_to_go, owner }
            });
        holds.chain(waiters).collect()
    }
}

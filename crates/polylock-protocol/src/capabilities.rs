//! The capabilities of a store.

use std::time::Duration;

use polylock_core::{
    Capabilities, Fencing, FirstStep, HoldLifetime, Modes, Notifications, Order, QueueLease, Scope,
};
use serde::{Deserialize, Serialize};

use crate::{InvalidBody, micros};

/// The description of a store behind a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreBody {
    /// The name of the store, as in its errors.
    pub store: String,
    /// The capabilities.
    pub capabilities: CapabilitiesBody,
    /// True if locks can be inspected and broken.
    pub inspects: bool,
    /// True if the server sends the names of locks that were broken.
    pub alerts: bool,
    /// True if tokens can be raised.
    pub raises: bool,
    /// True if the store keeps records of jobs.
    pub keeps_records: bool,
    /// True if the mode of a hold can be changed.
    pub converts: bool,
    /// True if a hold can be ended at a later time.
    #[serde(default)]
    pub parks: bool,
}

impl StoreBody {
    /// Returns true if this may be the store of `other`, behind a server that may be of another version.
    #[must_use]
    pub fn may_be(&self, other: &Self) -> bool {
        *self == Self { parks: self.parks, ..other.clone() }
    }
}

/// The [`Capabilities`] of a store behind a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilitiesBody {
    modes: String,
    order: String,
    notifications: String,
    fencing: String,
    hold_lifetime: String,
    min_ttl_us: u64,
    max_ttl_us: u64,
    queue_lease: String,
    keep_alive_batch: usize,
    claims_at_once: usize,
}

/// The words of the values of a field.
type Words<T> = [(&'static str, T)];

const MODES: &Words<Modes> = &[
    ("all", Modes::AllSix),
    ("exclusive-shared", Modes::ExclusiveAndShared),
    ("exclusive", Modes::ExclusiveOnly),
];
const ORDERS: &Words<Order> = &[("fifo", Order::Fifo), ("unordered", Order::Unordered)];
const NOTIFICATIONS: &Words<Notifications> =
    &[("pushed", Notifications::Pushed), ("polled", Notifications::Polled)];
const FENCING: &Words<Fencing> =
    &[("durable", Fencing::Durable), ("while-running", Fencing::WhileRunning), ("absent", Fencing::Absent)];
const LIFETIMES: &Words<HoldLifetime> = &[("lease", HoldLifetime::Lease), ("session", HoldLifetime::Session)];
const QUEUE_LEASES: &Words<QueueLease> =
    &[("entry", QueueLease::Entry), ("shared", QueueLease::Shared), ("absent", QueueLease::Absent)];

/// Returns the word of a value; the empty one for a value of a later version.
fn word<T: PartialEq>(words: &Words<T>, value: &T) -> String {
    words.iter().find(|(_, known)| known == value).map_or(String::new(), |(word, _)| (*word).to_owned())
}

fn value<T: Copy>(field: &'static str, words: &Words<T>, word: &str) -> Result<T, InvalidBody> {
    let known = words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value);
    known.ok_or_else(|| {
        InvalidBody::new(field, format!("{word:?} is unknown: the server has a later version"))
    })
}

impl From<&Capabilities> for CapabilitiesBody {
    fn from(of: &Capabilities) -> Self {
        Self {
            modes: word(MODES, &of.modes),
            order: word(ORDERS, &of.order),
            notifications: word(NOTIFICATIONS, &of.notifications),
            fencing: word(FENCING, &of.fencing),
            hold_lifetime: word(LIFETIMES, &of.hold_lifetime),
            min_ttl_us: micros(*of.ttl.start()),
            max_ttl_us: micros(*of.ttl.end()),
            queue_lease: word(QUEUE_LEASES, &of.queue_lease),
            keep_alive_batch: of.keep_alive_batch,
            claims_at_once: of.claims_at_once,
        }
    }
}

impl CapabilitiesBody {
    /// Returns the capabilities for the clients of the server, under the name `backend`. They reach it from many machines, and the end of
    /// their processes is unknown to the store.
    ///
    /// # Errors
    /// [`InvalidBody`] for an unknown value.
    pub fn capabilities(&self, backend: &'static str) -> Result<Capabilities, InvalidBody> {
        let ttl = Duration::from_micros(self.min_ttl_us)..=Duration::from_micros(self.max_ttl_us);
        if ttl.is_empty() {
            return Err(InvalidBody::new("max_ttl_us", "less than min_ttl_us"));
        }
        let mut found = Capabilities::new(backend, ttl);
        found.modes = value("modes", MODES, &self.modes)?;
        found.order = value("order", ORDERS, &self.order)?;
        found.notifications = value("notifications", NOTIFICATIONS, &self.notifications)?;
        found.fencing = value("fencing", FENCING, &self.fencing)?;
        found.hold_lifetime = value("hold_lifetime", LIFETIMES, &self.hold_lifetime)?;
        found.queue_lease = value("queue_lease", QUEUE_LEASES, &self.queue_lease)?;
        found.scope = Scope::Network;
        found.keep_alive_batch = self.keep_alive_batch.max(1);
        found.claims_at_once = self.claims_at_once.max(1);
        found.first_step = FirstStep::Thread;
        Ok(found)
    }
}

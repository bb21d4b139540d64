//! The promise of claims and of the header `Polylock-Expires`: nothing is carried out after its client has given it up. Another process may have
//! extended the hold since, or nobody may want the lock any more.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use polylock_core::{RequestId, sync::lock};
use polylock_protocol::paths;
use serde_json::Value;

use super::message::Message;
use crate::simulation::{network::nanos, queue_server::Executed, violation::Violation};

/// The longest time for which a message counts: the time limit of an operation by default.
const LONGEST: Duration = Duration::from_secs(3);

/// What the clocks of a client and a service differ by in that time, and one step of them.
const TOLERANCE: Duration = Duration::from_millis(5);

/// The messages that were sent for each request, by its id.
#[derive(Debug, Default)]
pub struct GivenUp(Mutex<BTreeMap<(String, Executed), Vec<Sent>>>);

/// The time at which a message was sent, and that after which it has no effect.
type Sent = (u64, u64);

/// A call that the store has carried out: the time, the request, and the operation.
pub type Call = (u64, RequestId, Executed);

impl GivenUp {
    /// Records a message that a client sends at `now`.
    pub fn sent(&self, message: &Message, now: u64) {
        let kind = match message.path.as_str() {
            paths::CLAIM => Executed::Claim,
            paths::RELEASE => Executed::Release,
            paths::PARK => Executed::Park,
            _ => return,
        };
        let Some(request) = message.request() else { return };
        let id = request.get("id").and_then(Value::as_str).unwrap_or_default();
        let ttl = Duration::from_micros(request.get("ttl_us").and_then(Value::as_u64).unwrap_or(0));
        let limit = if kind == Executed::Claim { ttl } else { ttl / 3 }.min(LONGEST);
        // A release without an expiry is wanted, however late it arrives.
        let until = if message.expires { now + nanos(limit + TOLERANCE) } else { u64::MAX };
        lock(&self.0).entry((id.to_owned(), kind)).or_default().push((now, until));
    }

    /// Returns the calls of which the clients had given up all messages.
    pub fn violations(&self, executed: Vec<Call>) -> Vec<Violation> {
        let sent = lock(&self.0);
        let found = executed.into_iter().filter_map(|(at, request, kind)| {
            let id = format!("{:032x}", u128::from_be_bytes(request.to_bytes()));
            let messages = sent.get(&(id, kind))?;
            let counts = messages.iter().any(|(sent, until)| (*sent..=*until).contains(&at));
            (!counts).then(|| {
                let what = format!("{kind:?}: it is carried out after its client has given it up");
                Violation::new(at, "late message", what)
            })
        });
        found.collect()
    }
}

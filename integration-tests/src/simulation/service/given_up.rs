//! The promise of the header `Polylock-Expires`: no release, and no end of a hold at a later time, has an effect after its client has given it up.
//! Another process may have extended the hold since.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use polylock_core::{RequestId, sync::lock};
use polylock_protocol::paths;
use serde_json::Value;

use super::message::Message;
use crate::simulation::{network::nanos, queue_server::EndKind, violation::Violation};

/// The longest time for which a message counts: the time limit of an operation by default.
const LONGEST: Duration = Duration::from_secs(3);

/// What the clocks of a client and a service differ by in that time, and one step of them.
const TOLERANCE: Duration = Duration::from_millis(5);

/// The messages that were sent for each request, by its id.
#[derive(Debug, Default)]
pub struct GivenUp(Mutex<BTreeMap<(String, EndKind), Vec<Sent>>>);

/// The time at which a message was sent, and that after which it has no effect.
type Sent = (u64, u64);

/// An effect in the store: the time, the request, and the operation.
pub type Effect = (u64, RequestId, EndKind);

impl GivenUp {
    /// Records a message that a client sends at `now`.
    pub fn sent(&self, message: &Message, now: u64) {
        let kind = match message.path.as_str() {
            paths::RELEASE => EndKind::Release,
            paths::PARK => EndKind::Park,
            _ => return,
        };
        let Some(request) = message.request() else { return };
        let id = request.get("id").and_then(Value::as_str).unwrap_or_default();
        let ttl = Duration::from_micros(request.get("ttl_us").and_then(Value::as_u64).unwrap_or(0));
        // A release that is no longer needed when it is late has no expiry.
        let until = if message.expires { now + nanos((ttl / 3).min(LONGEST) + TOLERANCE) } else { u64::MAX };
        lock(&self.0).entry((id.to_owned(), kind)).or_default().push((now, until));
    }

    /// Returns the effects of messages that their clients had given up.
    pub fn violations(&self, effects: Vec<Effect>) -> Vec<Violation> {
        let sent = lock(&self.0);
        let found = effects.into_iter().filter_map(|(at, request, kind)| {
            let id = format!("{:032x}", u128::from_be_bytes(request.to_bytes()));
            let messages = sent.get(&(id, kind))?;
            let counts = messages.iter().any(|(sent, until)| (*sent..=*until).contains(&at));
            (!counts).then(|| {
                let what = format!("{kind:?}: it has an effect after its client has given it up");
                Violation::new(at, "late message", what)
            })
        });
        found.collect()
    }
}

//! The settings of the server, and the capabilities of the store.

use std::time::Duration;

use polylock::{Fencing, HoldLifetime, Notifications, Order, Scope, core::Locks, duration};

use super::report::{Outcome, Row};

const PART: &str = "settings";

/// Returns the warnings of the store that was opened, and its capabilities.
pub(super) fn rows(locks: &Locks, ttl: Duration, warnings: Vec<String>) -> Vec<Row> {
    let mut rows: Vec<Row> =
        warnings.into_iter().map(|warning| Row::new(PART, "server", Outcome::Warning, warning)).collect();
    if rows.is_empty() {
        rows.push(Row::ok(PART, "server", "no warning"));
    }
    let capabilities = locks.capabilities();
    let fencing = match capabilities.fencing {
        Fencing::Durable => "tokens grow, also across a restart of the store",
        Fencing::WhileRunning => "tokens grow as long as the store runs",
        _ => "no tokens",
    };
    let order = match capabilities.order {
        Order::Fifo => "first come, first served",
        _ => "none: the first request after a release",
    };
    let notifications = match capabilities.notifications {
        Notifications::Pushed => "pushed to waiters",
        _ => "waiters of other processes poll",
    };
    let lifetime = match capabilities.hold_lifetime {
        HoldLifetime::Lease if capabilities.frees_dead_holders => {
            "a lease, which ends with the process of the holder"
        }
        HoldLifetime::Lease => "a lease, which outlives a connection",
        _ => "a session or connection",
    };
    let scope = match capabilities.scope {
        Scope::Process => "one process",
        Scope::Host => "the processes of one machine",
        _ => "network",
    };
    let (min, max) = (capabilities.ttl.start(), capabilities.ttl.end());
    rows.extend([
        Row::ok(PART, "fencing", fencing).warn_if(
            capabilities.fencing != Fencing::Durable,
            "a resource that checks tokens may accept a former holder after the store has lost data",
        ),
        Row::ok(PART, "order", order),
        Row::ok(PART, "notifications", notifications),
        Row::ok(PART, "hold", lifetime),
        Row::ok(PART, "scope", scope).warn_if(
            capabilities.scope == Scope::Process,
            "other processes do not see these locks: use a file or a server",
        ),
        Row::ok(
            PART,
            "TTL",
            format!(
                "{} (the store grants {} to {})",
                duration::format(ttl),
                duration::format(*min),
                duration::format(*max)
            ),
        ),
    ]);
    rows
}

//! Messages that must have no effect once their caller has given them up: another process may have extended the hold since.
//!
//! Each names an expiry by the clock of its server, which a script compares before it does anything.

use std::time::Duration;

use polylock_core::{Clock, Moment, Operation, Result, SystemClock, time_limit};
use redis::{FromRedisValue, ScriptInvocation, Value};

use super::{
    node::Node,
    scripts::{Reply, code},
};
use crate::{connection::Peer, error::Cause, link::Reply as CallReply};

/// The number of attempts of a message that a server takes for expired because its clock was set forward, or is not known well.
const ATTEMPTS: u32 = 3;

/// A script call, made for a server with an expiry in us by its clock.
pub(super) type ExpiringCall<'s> = &'s (dyn Fn(&Peer, i64) -> ScriptInvocation<'s> + Sync);

/// Returns the time until which the messages of an operation with this time limit may have an effect.
pub(super) fn expiry(timeout: Duration) -> Moment {
    SystemClock.now() + time_limit::within(timeout)
}

/// Returns the outcome of an operation whose messages expire at `by`: an error is returned then, because one of them may still arrive.
pub(super) async fn settled<T>(by: Moment, outcome: Result<T>) -> Result<T> {
    if outcome.is_err() {
        SystemClock.sleep_until(by).await;
    }
    outcome
}

impl Node {
    /// Runs a script that has no effect after `by`; at any time if that is [`Moment::NEVER`].
    pub(super) async fn call_in_time(
        &self,
        operation: Operation,
        by: Moment,
        timeout: Duration,
        call: ExpiringCall<'_>,
    ) -> CallReply {
        let left = || by.since(SystemClock.now());
        let invoke = |peer: &Peer| match by {
            Moment::NEVER => call(peer, i64::MAX),
            _ => call(peer, peer.clock.expiry_us(left()).unwrap_or(0)),
        };
        let mut may_execute_late = false;
        for _ in 0..ATTEMPTS {
            let mut reply = self.call(operation, timeout.min(left()), &invoke).await;
            reply.may_execute_late |= may_execute_late;
            let (Ok(value), Some((peer, sent_at))) = (&reply.outcome, &reply.peer) else { return reply };
            let Some(clock_us) = expired_at(value) else { return reply };
            peer.clock.observe(*sent_at, clock_us);
            may_execute_late = reply.may_execute_late;
        }
        let outcome = Err(self.link.failed(operation, Cause::TimedOut(timeout)));
        CallReply { outcome, was_sent: true, may_execute_late, peer: None }
    }
}

/// Returns the server's clock, if this is the reply to a message that has expired.
fn expired_at(value: &Value) -> Option<i64> {
    let (code, _, _, clock_us, _, _) = Reply::<Vec<u8>>::from_redis_value(value.clone()).ok()?;
    (code == code::EXPIRED).then_some(clock_us)
}

//! Messages about a server itself: the first one on its connection, the list that it belongs to, and the end of its delay.

use std::time::Duration;

use polylock_core::{Moment, Operation, Result};

use super::{
    in_time::expiry,
    membership::Observed,
    node::{Node, nonce, text},
    scripts::{ListArgs, Scripts, code},
};
use crate::{checkup::Health, connection::Peer};

impl Node {
    /// Connects. Returns the state of the server, the observation of its membership, and its identity.
    ///
    /// # Errors
    /// If the server can't be reached or used.
    pub(super) async fn connect(
        &self,
        scripts: &Scripts,
        keep: Duration,
        timeout: Duration,
    ) -> Result<(Health, Observed, String)> {
        let (live, _) =
            self.link.get_connection().await.map_err(|cause| self.link.failed(Operation::Connect, cause))?;
        let health = live.peer.health.clone();
        self.observe_clock(health.clock_us);
        let list = ListArgs { text: "", keep, records: false };
        let call = |peer: &Peer| scripts.membership(&self.membership_args(peer), &list, &nonce(), i64::MAX);
        let ((.., identity), observed) =
            self.run::<Vec<u8>>(Operation::Connect, timeout, &call).await.outcome?;
        Ok((health, observed, text(&identity)))
    }

    /// Compares `list` with those in use at the server, or records it as one of them. Returns the identity of the server, or a list in use
    /// that does not agree with it.
    ///
    /// # Errors
    /// If the server can't be reached.
    pub(super) async fn enlist(
        &self,
        scripts: &Scripts,
        list: &ListArgs<'_>,
        timeout: Duration,
    ) -> Result<Result<String, String>> {
        // A late copy would keep others out for a program that has ended.
        let by = if list.records { expiry(timeout) } else { Moment::NEVER };
        let call =
            |peer: &Peer, expiry| scripts.membership(&self.membership_args(peer), list, &nonce(), expiry);
        let reply = self.call_in_time(Operation::Connect, by, timeout, &call).await;
        let ((code, .., found), _) = self.read_membership::<Vec<u8>>(Operation::Connect, reply).outcome?;
        let found = text(&found);
        Ok(if code == code::OTHER { Err(found) } else { Ok(found) })
    }

    /// Ends the server's delay. Returns true if there was one.
    ///
    /// # Errors
    /// If the server can't be reached.
    pub(super) async fn admit(&self, scripts: &Scripts, timeout: Duration) -> Result<bool> {
        if self.remaining_delay().is_none() {
            return Ok(false);
        }
        // It is an observation of this server, whatever the list.
        let list = ListArgs { text: "", keep: Duration::ZERO, records: true };
        let call = |peer: &Peer| scripts.membership(&self.admission_args(peer), &list, &nonce(), i64::MAX);
        let (_, observed) = self.run::<Vec<u8>>(Operation::Connect, timeout, &call).await.outcome?;
        Ok(observed == Observed::Counts)
    }
}

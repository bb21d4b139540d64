//! Sends the list of this client to its servers: when the store is opened, before a claim if they may have forgotten it, at new connections, and
//! again while it is in use.

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, Fault, Operation, Result, SystemClock};

use super::{node::Node, poll::poll, scripts::ListArgs, tally::quorum, withdrawals::ServerSet};
use crate::error::Cause;

impl ServerSet {
    /// Compares the list at all servers, and has it recorded there if none of them has refused it. Waits until each has replied or is silent for
    /// `timeout`.
    ///
    /// If one server refuses a program, no server records it. Otherwise the other servers would refuse the programs that were there first. A
    /// program that `holds` locks stays recorded where it is accepted.
    async fn enlist(&self, holds: bool, timeout: Duration) {
        let (compared, quorum) = (self.send_list(false, timeout).await, quorum(self.nodes.len()));
        let sent = SystemClock.now();
        // Without a majority, nothing is granted.
        let records = holds || compared >= quorum && self.list.refusal(sent).is_none();
        if records && self.send_list(true, timeout).await >= quorum {
            self.list.recorded(sent);
        }
    }

    /// Compares the list with those in use at all servers.
    pub(super) async fn compare_list(&self, timeout: Duration) {
        self.send_list(false, timeout).await;
    }

    /// Returns the number of servers that have accepted the list.
    async fn send_list(&self, records: bool, timeout: Duration) -> usize {
        let sent = SystemClock.now();
        let text: Arc<str> = self.list.text(sent).into();
        let send = |index, node: Arc<Node>| {
            let (scripts, list, text) = (self.scripts.clone(), self.list.clone(), text.clone());
            Some(async move {
                let args = ListArgs { text: &text, keep: list.keep, records };
                let reply = node.enlist(&scripts, &args, timeout).await;
                match &reply {
                    Ok(Ok(identity)) => list.accepted(index, identity, sent),
                    Ok(Err(other)) => list.refused(index, other, sent),
                    Err(_) => list.forget(index),
                }
                reply.map(|reply| reply.is_ok())
            })
        };
        let replies = poll(Operation::Connect, &self.nodes, timeout, send, |_, _| false).await;
        replies.iter().filter(|reply| matches!(reply, Some(Ok(true)))).count()
    }

    /// Sends the list to all servers if it is due: in the background if they have it, and otherwise before this returns.
    pub(super) async fn enlist_before_claim(self: &Arc<Self>) {
        if self.list.is_recorded(SystemClock.now()) {
            drop(self.enlist_again(false));
            return;
        }
        // Of the first claims of a program, one sends it, and the others wait for that.
        let _turn = self.list.turn.lock().await;
        if let Some(sending) = self.enlist_again(false) {
            sending.await;
        }
    }

    /// Sends the list to all servers in the background, if it is due. The message goes on if what is returned is dropped.
    pub(super) fn enlist_again(self: &Arc<Self>, holds: bool) -> Option<impl Future + use<>> {
        self.list.begin(SystemClock.now()).then(|| {
            let io = self.io_set().clone();
            self.io_set().nodes[0].executor().spawn(async move { io.enlist(holds, io.timeout).await })
        })
    }

    /// Checks that no server has refused the list.
    ///
    /// # Errors
    /// The error of `operation`, with the reason of the server.
    pub(super) fn check_list(&self, operation: Operation) -> Result<()> {
        self.list.refusal(SystemClock.now()).map_or(Ok(()), |(at, advice)| {
            Err(self.nodes[at].link.failed(operation, Cause::Unusable(Fault::Permanent, advice)))
        })
    }
}

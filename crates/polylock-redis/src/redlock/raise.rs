//! Raises tokens: makes a majority refuse the numbers up to the one that is raised to.
//!
//! A server counts only if the holder has its vote at that time. It would not be enough that a majority refuses the numbers from then on:
//! 1. P holds the lock, with the votes of the servers 1, 2 and 3 of five. Q has proposed 7; it has the votes of 4 and 5, and its messages
//!    to the other servers are late.
//! 2. P raises the tokens to 9. Its messages to 2 and 3 are late; the servers 1, 4 and 5 refuse 9 from now on.
//! 3. P releases. The messages of Q arrive at 2 and 3, which vote for 7: Q has a majority, and a token that is too small.
//!
//! No other request has the vote of a server that the holder has, so each later majority contains a server that has voted after it refused
//! the number.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Fault, FencingToken, Operation, RaiseToken, Request, Result};

use super::{
    NAME,
    backend::RedlockBackend,
    node::Node,
    poll::{no_majority, poll},
    proposals::UNKNOWN,
    scripts::Renewal,
    tally::quorum,
};
use crate::error::{Cause, exact, no_room_above};

#[async_trait]
impl RaiseToken for RedlockBackend {
    async fn raise(&self, request: &Request, to: FencingToken) -> Result<FencingToken> {
        let failed = |cause: Cause| cause.at(NAME, Operation::Claim, "a majority");
        let number = exact(to).ok_or_else(|| failed(no_room_above(to)))?;
        let token = self.servers.proposals().token(request.id);
        let holder =
            Arc::new(Renewal { request: Arc::new(request.clone()), number: token.unwrap_or(UNKNOWN) });
        let (nodes, timeout) = (&self.servers.nodes, self.servers.timeout_of(request));
        let send = |_, node: Arc<Node>| {
            let (servers, holder) = (self.servers.clone(), holder.clone());
            Some(async move { node.raise(&servers.scripts, &holder, number, timeout).await })
        };
        let mut held = 0;
        let replies = poll(Operation::Claim, nodes, timeout, send, |_, reply| {
            held += usize::from(matches!(reply, Ok(true)));
            held >= quorum(nodes.len())
        })
        .await;
        if held >= quorum(nodes.len()) {
            return Ok(token.and_then(FencingToken::new).unwrap_or(to));
        }
        if replies.iter().filter(|reply| matches!(reply, Some(Ok(_)))).count() < quorum(nodes.len()) {
            return Err(no_majority(Operation::Claim, nodes, &replies));
        }
        let advice = "the request does not hold the lock at a majority of the servers".to_owned();
        Err(failed(Cause::Unusable(Fault::Temporary, advice)))
    }
}

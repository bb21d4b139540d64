//! Ending a hold at a later time: a majority of the votes is parked, so no majority can be extended any more.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{FencingToken, Operation, Park, Release, Request, Result};

use super::{
    backend::{RedlockBackend, lost_reason},
    in_time::{expiry, settled},
    node::{Node, Parked},
    poll::{no_majority, poll},
    tally::quorum,
};

#[async_trait]
impl Park for RedlockBackend {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let (nodes, timeout) = (&self.servers.nodes, self.servers.timeout_of(request));
        let by = expiry(timeout);
        let request = Arc::new(request.clone());
        let send = |_, node: Arc<Node>| {
            let (servers, request) = (self.servers.clone(), request.clone());
            Some(
                async move { node.park(&servers.scripts, &request, token.as_i64(), left, (by, timeout)).await },
            )
        };
        let (mut parked, mut lost, mut notice) = (0, 0, String::new());
        let replies = poll(Operation::Renew, nodes, timeout, send, |_, reply| {
            match reply {
                Ok(Parked::Yes) => parked += 1,
                Ok(Parked::No(why)) => {
                    lost += 1;
                    if !why.is_empty() {
                        notice.clone_from(why);
                    }
                }
                Err(_) => {}
            }
            parked >= quorum(nodes.len()) || nodes.len() - lost < quorum(nodes.len())
        })
        .await;
        if parked >= quorum(nodes.len()) {
            return Ok(Release::Released);
        }
        if nodes.len() - lost < quorum(nodes.len()) {
            return Ok(Release::Lost(lost_reason(&notice)));
        }
        settled(by, Err(no_majority(Operation::Renew, nodes, &replies))).await
    }
}

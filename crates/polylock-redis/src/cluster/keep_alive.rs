//! Extends the leases of many requests: one message to each node, with one script call for each bucket.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, future, stream::FuturesUnordered};
use polylock_core::{Clock, Error, Operation, Request, Result, SystemClock};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use super::nodes::{Nodes, Step};
use crate::{
    call::{Call, Routing},
    error::Cause,
    keys::Bucket,
    link::Link,
    queue::Scripts,
};

/// The requests of one bucket, each with its index in the batch.
type Group = (Bucket, Vec<(usize, Arc<Request>)>);

/// The reply about one request, or the address of the server and the cause of the failure.
type Outcome = Result<Value, (String, Cause)>;

/// The outcomes for some requests, by index in the batch.
type Outcomes = Vec<(usize, Outcome)>;

impl Nodes {
    /// Extends the holds and queue entries of `requests`, and returns the script's reply about each, in the same order. A node that is
    /// silent does not delay the replies of the others for longer than `shortest`, and no call takes longer than `longest` allows.
    pub(crate) async fn keep_alive(
        self: &Arc<Self>,
        scripts: &Arc<Scripts>,
        requests: &[Arc<Request>],
        [shortest, longest]: [Duration; 2],
    ) -> Vec<Result<Value>> {
        let mut under_way: Vec<(Option<Arc<Link>>, bool)> = Vec::new();
        let mut tasks = FuturesUnordered::new();
        for (index, (link, groups)) in self.by_primary(requests).into_iter().enumerate() {
            let (nodes, scripts) = (self.clone(), scripts.clone());
            under_way.push((link.clone(), true));
            // A separate task receives the replies even if this function returns earlier.
            tasks.push(tokio::spawn(async move {
                (index, nodes.keep_alive_at(&scripts, link.as_deref(), groups, longest).await)
            }));
        }
        let mut replies: Vec<Result<Value>> = requests.iter().map(|_| Err(self.timed_out(longest))).collect();
        let mut check_at = SystemClock.now() + shortest;
        loop {
            match SystemClock.before(check_at, tasks.next()).await {
                Some(Some(Ok((index, outcomes)))) => {
                    under_way[index].1 = false;
                    for (request, outcome) in outcomes {
                        replies[request] = outcome
                            .map_err(|(address, cause)| self.failed_at(&address, Operation::Renew, cause));
                    }
                }
                Some(Some(Err(_))) => {}
                Some(None) => return replies,
                None => {
                    let is_unresponsive = |link: &Option<Arc<Link>>| {
                        link.as_ref().is_none_or(|link| link.is_unresponsive_for(shortest))
                    };
                    if under_way.iter().all(|(link, is_pending)| !is_pending || is_unresponsive(link)) {
                        return replies;
                    }
                    check_at = SystemClock.now() + shortest / 4;
                }
            }
        }
    }

    /// Groups the requests by the node that serves them, and for each node by bucket.
    fn by_primary(&self, requests: &[Arc<Request>]) -> Vec<(Option<Arc<Link>>, Vec<Group>)> {
        let mut groups: BTreeMap<Bucket, Vec<(usize, Arc<Request>)>> = BTreeMap::new();
        for (index, request) in requests.iter().enumerate() {
            groups.entry(Bucket::of(&request.name)).or_default().push((index, request.clone()));
        }
        let mut primaries: Vec<(Option<Arc<Link>>, Vec<Group>)> = Vec::new();
        for group in groups {
            let primary = self.primary(group.0);
            let is_same = |link: &Option<Arc<Link>>| {
                link.as_ref().map(Arc::as_ptr) == primary.as_ref().map(Arc::as_ptr)
            };
            match primaries.iter_mut().find(|(link, _)| is_same(link)) {
                Some((_, groups)) => groups.push(group),
                None => primaries.push((primary, vec![group])),
            }
        }
        primaries
    }

    /// Extends the requests of some buckets that one node serves.
    async fn keep_alive_at(
        self: &Arc<Self>,
        scripts: &Scripts,
        link: Option<&Link>,
        groups: Vec<Group>,
        timeout: Duration,
    ) -> Outcomes {
        let (Some(link), true) = (link, groups.len() > 1) else {
            return self.extend_separately(scripts, groups, timeout).await;
        };
        let mut commands = redis::pipe();
        for (_, requests) in &groups {
            commands.invoke_script(&scripts.keep_alive(requests.iter().map(|(_, request)| request)));
        }
        let reply = link.attempt(Operation::Renew, timeout, Call::Batch(&commands), Routing::default()).await;
        let replies = match reply.outcome {
            Ok(Value::Array(replies)) => replies,
            Ok(_) => Vec::new(),
            Err(cause) => {
                let table_is_known =
                    Step::after(&cause) == Step::Refresh && self.refresh(Some(link)).await.is_ok();
                let moved = |bucket| {
                    let primary = self.primary(bucket);
                    table_is_known && primary.is_some_and(|primary| !std::ptr::eq(&raw const *primary, link))
                };
                let (moved, remaining): (Vec<_>, Vec<_>) =
                    groups.into_iter().partition(|(bucket, _)| moved(*bucket));
                let mut outcomes = self.extend_separately(scripts, moved, timeout).await;
                let address = link.address();
                let failed = remaining.into_iter().flat_map(|(_, requests)| requests);
                outcomes.extend(failed.map(|(index, _)| (index, Err((address.to_owned(), cause.clone())))));
                return outcomes;
            }
        };
        let (mut outcomes, mut retried, mut replies) = (Outcomes::new(), Vec::new(), replies.into_iter());
        for group in groups {
            match replies.next() {
                // The slot has moved, or the node does not have the script: a separate call handles both.
                Some(Value::ServerError(_)) | None => retried.push(group),
                Some(reply) => outcomes.extend(self.split_reply(group, Ok(reply))),
            }
        }
        outcomes.extend(self.extend_separately(scripts, retried, timeout).await);
        outcomes
    }

    /// Extends the requests of each bucket with a separate call.
    async fn extend_separately(
        self: &Arc<Self>,
        scripts: &Scripts,
        groups: Vec<Group>,
        timeout: Duration,
    ) -> Outcomes {
        let calls = groups.into_iter().map(async |(bucket, requests)| {
            let invoke = |_: &_| scripts.keep_alive(requests.iter().map(|(_, request)| request));
            let reply = self.attempt(bucket, Operation::Renew, timeout, Call::Script(&invoke), None).await;
            match reply.outcome {
                Err((_, cause)) if is_being_moved(&cause) => {
                    self.extend_holds_only(scripts, bucket, requests, timeout).await
                }
                outcome => self.split_reply((bucket, requests), outcome),
            }
        });
        future::join_all(calls).await.into_iter().flatten().collect()
    }

    /// Extends holds while their slot is being moved. During the move, a node serves a call only if it has all its keys. The holds of a
    /// lock are one key, which one of the two nodes has, so they can be extended. Waiters can't be extended.
    async fn extend_holds_only(
        self: &Arc<Self>,
        scripts: &Scripts,
        bucket: Bucket,
        requests: Vec<(usize, Arc<Request>)>,
        timeout: Duration,
    ) -> Outcomes {
        let calls = requests.into_iter().map(async |(index, request)| {
            let invoke = |_: &_| scripts.keep_hold(&request);
            let reply = self.attempt(bucket, Operation::Renew, timeout, Call::Script(&invoke), None).await;
            match reply.outcome {
                Ok(Value::Array(mut replies)) if replies != [Value::Int(-1)] => {
                    (index, Ok(replies.pop().unwrap_or(Value::Nil)))
                }
                Ok(_) => (index, Err((self.address(), Cause::SlotLeft))),
                Err(failed) => (index, Err(failed)),
            }
        });
        future::join_all(calls).await
    }

    /// Returns the outcome for each request of a group, from the reply of the script for all of them.
    fn split_reply(&self, (_, requests): Group, outcome: Outcome) -> Outcomes {
        let unexpected = || Cause::Unusable(polylock_core::Fault::Permanent, "unexpected reply".to_owned());
        match outcome {
            Ok(Value::Array(replies)) if replies.len() == requests.len() => {
                requests.into_iter().zip(replies).map(|((index, _), reply)| (index, Ok(reply))).collect()
            }
            Ok(_) => {
                requests.into_iter().map(|(index, _)| (index, Err((self.address(), unexpected())))).collect()
            }
            Err(failed) => requests.into_iter().map(|(index, _)| (index, Err(failed.clone()))).collect(),
        }
    }

    fn timed_out(&self, timeout: Duration) -> Error {
        self.failed(Operation::Renew, Cause::TimedOut(timeout))
    }
}

fn is_being_moved(cause: &Cause) -> bool {
    let kind = |error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain);
    matches!(cause, Cause::Driver(error) if kind(error))
}

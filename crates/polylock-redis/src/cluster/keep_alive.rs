//! Extending the leases of many requests: one message to each node, and a script for each bucket in it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, future, stream::FuturesUnordered};
use polylock_core::{Clock, Error, Operation, Request, Result, SystemClock};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use super::nodes::{Nodes, Step};
use crate::{
    call::{Call, Via},
    error::Cause,
    keys::Bucket,
    link::Link,
    queue::Scripts,
};

/// The requests of one bucket, each with its place in the batch.
type Group = (Bucket, Vec<(usize, Arc<Request>)>);

/// The reply about one request, or where and why there is none.
type Outcome = Result<Value, (String, Cause)>;

/// The outcomes for some requests, by their places in the batch.
type Outcomes = Vec<(usize, Outcome)>;

impl Nodes {
    /// Extends what `requests` have. Returns the script's reply about each, in their order. A node that is silent does not delay the
    /// replies of the others for longer than `shortest`, and no call takes longer than `longest` allows.
    pub(crate) async fn keep_alive(
        self: &Arc<Self>,
        scripts: &Arc<Scripts>,
        requests: &[Arc<Request>],
        [shortest, longest]: [Duration; 2],
    ) -> Vec<Result<Value>> {
        let mut under_way: Vec<(Option<Arc<Link>>, bool)> = Vec::new();
        let mut tasks = FuturesUnordered::new();
        for (at, (link, groups)) in self.by_owner(requests).into_iter().enumerate() {
            let (nodes, scripts) = (self.clone(), scripts.clone());
            under_way.push((link.clone(), true));
            // A task of its own: what is sent is waited for, also if this returns earlier.
            tasks.push(tokio::spawn(async move {
                (at, nodes.keep_alive_at(&scripts, link.as_deref(), groups, longest).await)
            }));
        }
        let mut replies: Vec<Result<Value>> = requests.iter().map(|_| Err(self.silent(longest))).collect();
        let mut look_at = SystemClock.now() + shortest;
        loop {
            match SystemClock.before(look_at, tasks.next()).await {
                Some(Some(Ok((at, outcomes)))) => {
                    under_way[at].1 = false;
                    for (request, outcome) in outcomes {
                        replies[request] =
                            outcome.map_err(|(place, cause)| self.failed_at(&place, Operation::Renew, cause));
                    }
                }
                Some(Some(Err(_))) => {}
                Some(None) => return replies,
                None => {
                    let is_silent = |link: &Option<Arc<Link>>| {
                        link.as_ref().is_none_or(|link| link.is_silent_for(shortest))
                    };
                    if under_way.iter().all(|(link, waits)| !waits || is_silent(link)) {
                        return replies;
                    }
                    look_at = SystemClock.now() + shortest / 4;
                }
            }
        }
    }

    /// The requests by the node that serves them, and for each node by bucket.
    fn by_owner(&self, requests: &[Arc<Request>]) -> Vec<(Option<Arc<Link>>, Vec<Group>)> {
        let mut groups: BTreeMap<Bucket, Vec<(usize, Arc<Request>)>> = BTreeMap::new();
        for (at, request) in requests.iter().enumerate() {
            groups.entry(Bucket::of(&request.name)).or_default().push((at, request.clone()));
        }
        let mut owners: Vec<(Option<Arc<Link>>, Vec<Group>)> = Vec::new();
        for group in groups {
            let owner = self.owner(group.0);
            let same =
                |link: &Option<Arc<Link>>| link.as_ref().map(Arc::as_ptr) == owner.as_ref().map(Arc::as_ptr);
            match owners.iter_mut().find(|(link, _)| same(link)) {
                Some((_, groups)) => groups.push(group),
                None => owners.push((owner, vec![group])),
            }
        }
        owners
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
            return self.one_by_one(scripts, groups, timeout).await;
        };
        let mut commands = redis::pipe();
        for (_, requests) in &groups {
            commands.invoke_script(&scripts.keep_alive(requests.iter().map(|(_, request)| request)));
        }
        let reply = link.attempt(Operation::Renew, timeout, Call::Batch(&commands), Via::default()).await;
        let replies = match reply.outcome {
            Ok(Value::Array(replies)) => replies,
            Ok(_) => Vec::new(),
            Err(cause) => {
                let is_known =
                    Step::after(&cause) == Step::LookAgain && self.refresh(Some(link)).await.is_ok();
                let moved = |bucket| {
                    let owner = self.owner(bucket);
                    is_known && owner.is_some_and(|owner| !std::ptr::eq(&raw const *owner, link))
                };
                let (moved, here): (Vec<_>, Vec<_>) =
                    groups.into_iter().partition(|(bucket, _)| moved(*bucket));
                let mut outcomes = self.one_by_one(scripts, moved, timeout).await;
                let place = link.address();
                let failed = here.into_iter().flat_map(|(_, requests)| requests);
                outcomes.extend(failed.map(|(at, _)| (at, Err((place.to_owned(), cause.clone())))));
                return outcomes;
            }
        };
        let (mut outcomes, mut again, mut replies) = (Outcomes::new(), Vec::new(), replies.into_iter());
        for group in groups {
            match replies.next() {
                // The slot has moved, or the node does not have the script: its own way finds out.
                Some(Value::ServerError(_)) | None => again.push(group),
                Some(reply) => outcomes.extend(self.each(group, Ok(reply))),
            }
        }
        outcomes.extend(self.one_by_one(scripts, again, timeout).await);
        outcomes
    }

    /// Extends the requests of each bucket by a call of its own.
    async fn one_by_one(
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
                    self.holds_alone(scripts, bucket, requests, timeout).await
                }
                outcome => self.each((bucket, requests), outcome),
            }
        });
        future::join_all(calls).await.into_iter().flatten().collect()
    }

    /// Extends holds while their slot is being moved. A node serves only calls all of whose keys it has then. The holds of a lock are
    /// one key, which one of the two nodes has, so they can be extended. Waiters can not.
    async fn holds_alone(
        self: &Arc<Self>,
        scripts: &Scripts,
        bucket: Bucket,
        requests: Vec<(usize, Arc<Request>)>,
        timeout: Duration,
    ) -> Outcomes {
        let calls = requests.into_iter().map(async |(at, request)| {
            let invoke = |_: &_| scripts.keep_hold(&request);
            let reply = self.attempt(bucket, Operation::Renew, timeout, Call::Script(&invoke), None).await;
            match reply.outcome {
                Ok(Value::Array(mut replies)) if replies != [Value::Int(-1)] => {
                    (at, Ok(replies.pop().unwrap_or(Value::Nil)))
                }
                Ok(_) => (at, Err((self.place(), Cause::SlotLeft))),
                Err(failed) => (at, Err(failed)),
            }
        });
        future::join_all(calls).await
    }

    /// The outcome for each request of a group, by the reply of the script about all of them.
    fn each(&self, (_, requests): Group, outcome: Outcome) -> Outcomes {
        let unexpected = || Cause::Unusable(polylock_core::Fault::Permanent, "unexpected reply".to_owned());
        match outcome {
            Ok(Value::Array(replies)) if replies.len() == requests.len() => {
                requests.into_iter().zip(replies).map(|((at, _), reply)| (at, Ok(reply))).collect()
            }
            Ok(_) => requests.into_iter().map(|(at, _)| (at, Err((self.place(), unexpected())))).collect(),
            Err(failed) => requests.into_iter().map(|(at, _)| (at, Err(failed.clone()))).collect(),
        }
    }

    fn silent(&self, timeout: Duration) -> Error {
        self.failed(Operation::Renew, Cause::TimedOut(timeout))
    }
}

fn is_being_moved(cause: &Cause) -> bool {
    let kind = |error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain);
    matches!(cause, Cause::Driver(error) if kind(error))
}

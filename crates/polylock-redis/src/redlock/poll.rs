//! Sends messages to all servers at once.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, future::Either, stream::FuturesUnordered};
use polylock_core::{Clock, Error, Executor, Fault, Operation, Result, SystemClock};

use super::{NAME, node::Node, tally::quorum};
use crate::{
    error::Cause,
    flow::{MAX_TIMEOUT_FACTOR, grace},
};

/// Sends a message to every server for which `send` returns a future, and returns the replies by server. `None` is a server without a
/// message, or one that was still due when `is_enough` was true. The reply of a server is an error if it was silent for `timeout`, or if only
/// servers are due that were silent before, and the others are a majority: then nothing depends on them. A server that replies to other
/// messages of this client in the meantime is not silent, and is waited for several times as long.
///
/// The caller's future drives all messages. Messages that are due when it ends continue in one task, so a late reply still updates the
/// state, but not the result. A silent server on which nothing depends receives no message while another task tries to reach it, except for
/// a release: otherwise more and more messages would wait for it.
///
/// If `nodes` are those of a caller's runtime, a server that is reached only on the link of the I/O thread receives its message there.
///
/// # Cancel safety
/// Dropping the future stops nothing on the I/O thread. On a caller's runtime it drops the messages that are due, as does the end of that
/// runtime, so `send` must return futures that may be dropped at any point.
pub(super) async fn poll<T, F>(
    operation: Operation,
    nodes: &[Arc<Node>],
    timeout: Duration,
    send: impl Fn(usize, Arc<Node>) -> Option<F>,
    mut is_enough: impl FnMut(usize, &Result<T>) -> bool,
) -> Vec<Option<Result<T>>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let serving: Vec<&Arc<Node>> = nodes.iter().map(Node::serving).collect();
    let unresponsive: Vec<bool> = serving.iter().map(|node| node.link.is_unresponsive()).collect();
    let needs_unresponsive =
        unresponsive.iter().filter(|unresponsive| !**unresponsive).count() < quorum(nodes.len());
    let mut awaited: Vec<bool> =
        unresponsive.iter().map(|unresponsive| needs_unresponsive || !unresponsive).collect();
    // A silent server is an error even if nothing is sent to it, unless nothing was to be sent.
    let mut is_addressed = vec![true; nodes.len()];
    let mut messages = Messages {
        executor: nodes[0].executor(),
        pending: FuturesUnordered::new(),
        is_for_caller: nodes[0].is_for_caller(),
    };
    for (index, node) in serving.iter().enumerate() {
        let is_on_io_thread = !Arc::ptr_eq(node, &nodes[index]);
        // A caller makes the I/O thread reconnect, see `Node::reconnect`.
        let is_being_reached = is_on_io_thread || node.link.is_connecting();
        if !awaited[index] && is_being_reached && operation != Operation::Release {
            continue;
        }
        let Some(message) = send(index, Arc::clone(node)) else {
            (awaited[index], is_addressed[index]) = (false, false);
            continue;
        };
        messages.pending.push(if is_on_io_thread {
            let (message, node) = (node.executor().spawn(message), Arc::clone(node));
            Either::Left(async move {
                // On the I/O thread, only a panic ends the message without a reply.
                let failed = |_| Err(node.link.failed(operation, Cause::TimedOut(timeout)));
                (index, message.await.unwrap_or_else(failed))
            })
        } else {
            Either::Right(async move { (index, message.await) })
        });
    }
    let mut results: Vec<_> = nodes.iter().map(|_| None).collect();
    let began = SystemClock.now();
    let (mut deadline, longest) = (began + timeout, began + MAX_TIMEOUT_FACTOR * timeout);
    let in_time = loop {
        if !awaited.contains(&true) {
            break true;
        }
        let reply = tokio::select! {
            biased;
            reply = messages.pending.next() => reply,
            () = SystemClock.sleep_until(deadline) => {
                let now = SystemClock.now();
                let replies = |index: usize| awaited[index] && serving[index].link.replied_since(now - timeout);
                let more = if (0..nodes.len()).any(replies) { timeout / 4 } else { Duration::ZERO };
                deadline = (now + more.max(grace(deadline, now, timeout))).min(longest);
                if deadline > now {
                    continue;
                }
                None
            }
        };
        let Some((index, reply)) = reply else { break false };
        let enough = is_enough(index, &reply);
        results[index] = Some(reply);
        awaited[index] = false;
        if enough {
            break true;
        }
    };
    messages.detach();
    for (index, node) in nodes.iter().enumerate() {
        if results[index].is_none() && is_addressed[index] && (unresponsive[index] || !in_time) {
            results[index] = Some(Err(node.link.failed(operation, Cause::TimedOut(timeout))));
        }
    }
    results
}

/// The messages without a reply yet.
struct Messages<'a, F: Future<Output: Send> + Send + 'static> {
    /// Drives them when the caller's future ends.
    executor: &'a Executor,
    pending: FuturesUnordered<F>,
    /// True if they end when this is dropped.
    is_for_caller: bool,
}

impl<F: Future<Output: Send> + Send + 'static> Messages<'_, F> {
    /// Continues the messages that are due in one task.
    fn detach(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        if !pending.is_empty() {
            self.executor.spawn(async move { while pending.next().await.is_some() {} });
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Messages<'_, F> {
    fn drop(&mut self) {
        if !self.is_for_caller {
            self.detach();
        }
    }
}

/// Returns the error of an operation for which too few servers have replied, or too few have a vote that counts. It names each server with
/// its reason.
pub(super) fn no_majority<T>(
    operation: Operation,
    nodes: &[Arc<Node>],
    replies: &[Option<Result<T>>],
) -> Error {
    let (mut reasons, mut faults) = (Vec::new(), Vec::new());
    let (mut delays, mut delayed) = (Vec::new(), Vec::new());
    let votes = matches!(operation, Operation::Claim | Operation::Renew);
    for (node, reply) in nodes.iter().zip(replies) {
        match reply {
            Some(Ok(_)) => {
                if let Some(delay) = node.remaining_delay().filter(|_| votes) {
                    delays.push(delay);
                    delayed.push(node.address());
                }
            }
            // Its reply was not waited for.
            None => {}
            Some(Err(Error::Unavailable(failure))) => {
                reasons.push(failure.source.to_string());
                faults.push(failure.fault);
            }
            Some(Err(other)) => {
                reasons.push(format!("{}: {other}", node.address()));
                faults.push(Fault::Permanent);
            }
        }
    }
    let (servers, quorum) = (nodes.len(), quorum(nodes.len()));
    let counted = servers - reasons.len() - delays.len();
    // The time until enough votes count, if the servers that can't be reached stay away.
    delays.sort_unstable();
    let missing = quorum.saturating_sub(counted);
    let retry_after = missing.checked_sub(1).and_then(|last| delays.get(last).copied());
    if let Some(longest) = delays.last() {
        faults.push(Fault::Temporary);
        let left = retry_after.unwrap_or(*longest);
        reasons.push(format!(
            "{} of {servers} servers are new or have lost their data ({}); their votes count in {left:.0?}, when every \
             earlier lease has expired. Wait, or end the delay with `polylock admit` if these servers were never used \
             for locks before",
            delayed.len(),
            delayed.join(", "),
        ));
    }
    // A fault of all of them is the reason; otherwise another attempt may reach more servers.
    let same = faults.first().copied().filter(|first| faults.iter().all(|fault| fault == first));
    let requirement = if votes { "have a vote that counts" } else { "have replied" };
    let advice =
        format!("{counted} of {servers} servers {requirement}, and {quorum} must: {}", reasons.join("; "));
    let error = Cause::Unusable(same.unwrap_or(Fault::Temporary), advice).at(NAME, operation, "a majority");
    match (error, retry_after) {
        (Error::Unavailable(unavailable), Some(delay)) => unavailable.retry_after(delay).into(),
        (error, _) => error,
    }
}

/// Returns the error of a release that was confirmed by too few of the servers that may have a vote.
pub(super) fn unconfirmed<T>(nodes: &[Arc<Node>], open: &[usize], replies: Vec<Option<Result<T>>>) -> Error {
    let (mut reasons, mut fault) = (Vec::new(), Fault::Temporary);
    for (index, reply) in replies.into_iter().enumerate().filter(|(index, _)| open.contains(index)) {
        match reply {
            Some(Err(Error::Unavailable(failure))) => {
                reasons.push(failure.source.to_string());
                if open.len() == 1 {
                    fault = failure.fault;
                }
            }
            _ => reasons.push(format!("{}: no reply", nodes[index].address())),
        }
    }
    let advice = format!(
        "{} of {} servers may still have a vote, and have not confirmed the release: {}",
        open.len(),
        nodes.len(),
        reasons.join("; ")
    );
    Cause::Unusable(fault, advice).at(NAME, Operation::Release, "a majority")
}

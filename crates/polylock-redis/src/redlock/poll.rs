//! Sending to all servers at once.

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, Error, Fault, Operation, Result, SystemClock};
use tokio::sync::mpsc;

use super::{NAME, node::Node, tally::quorum};
use crate::{
    error::Cause,
    flow::{LONGEST, grace},
};

/// Sends to every server for which `send` returns a future, and returns the replies by server. `None` is a server to which nothing
/// was sent, or one that was still due when `enough` was true. A server is an error if it was silent for `within`, or if only such
/// servers are left that were silent before, and the others are a majority: then nothing depends on them. A server that replies to
/// other messages of this client meanwhile is not silent, and is waited for several times as long.
///
/// Each message is a task of its own that goes on to its end, so a late reply still has its effect on the state, but not on the
/// result. A server that is silent, and on which nothing depends, gets no message while another task finds out whether it is back,
/// except for a release: more and more tasks would wait for it.
///
/// # Cancel safety
/// Dropping it stops none of the tasks.
pub(super) async fn poll<T, F>(
    operation: Operation,
    nodes: &[Arc<Node>],
    within: Duration,
    send: impl Fn(usize, Arc<Node>) -> Option<F>,
    mut enough: impl FnMut(usize, &Result<T>) -> bool,
) -> Vec<Option<Result<T>>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let silent: Vec<bool> = nodes.iter().map(|node| node.link.is_silent()).collect();
    let few = silent.iter().filter(|silent| !**silent).count() < quorum(nodes.len());
    let mut awaited: Vec<bool> = silent.iter().map(|silent| few || !silent).collect();
    // A silent server is an error though nothing is sent to it, unless nothing was to be sent.
    let mut is_concerned = vec![true; nodes.len()];
    let (replies, mut received) = mpsc::unbounded_channel();
    for (index, node) in nodes.iter().enumerate() {
        if !awaited[index] && node.link.is_connecting() && operation != Operation::Release {
            continue;
        }
        let Some(sending) = send(index, node.clone()) else {
            (awaited[index], is_concerned[index]) = (false, false);
            continue;
        };
        let replies = replies.clone();
        // An error means that the result was returned before.
        tokio::spawn(async move { replies.send((index, sending.await)).ok() });
    }
    drop(replies);
    let mut results: Vec<_> = nodes.iter().map(|_| None).collect();
    let began = SystemClock.now();
    let (mut deadline, longest) = (began + within, began + LONGEST * within);
    let in_time = loop {
        if !awaited.contains(&true) {
            break true;
        }
        let reply = tokio::select! {
            biased;
            reply = received.recv() => reply,
            () = SystemClock.sleep_until(deadline) => {
                let now = SystemClock.now();
                let replies = |index: usize| awaited[index] && nodes[index].link.replied_since(now - within);
                let more = if (0..nodes.len()).any(replies) { within / 4 } else { Duration::ZERO };
                deadline = (now + more.max(grace(deadline, now, within))).min(longest);
                if deadline > now {
                    continue;
                }
                None
            }
        };
        let Some((index, reply)) = reply else { break false };
        let is_enough = enough(index, &reply);
        results[index] = Some(reply);
        awaited[index] = false;
        if is_enough {
            break true;
        }
    };
    for (index, node) in nodes.iter().enumerate() {
        if results[index].is_none() && is_concerned[index] && (silent[index] || !in_time) {
            results[index] = Some(Err(node.link.failed(operation, Cause::TimedOut(within))));
        }
    }
    results
}

/// The error of an operation for which too few servers have replied, or have a vote that counts. It names them with their reasons.
pub(super) fn too_few<T>(operation: Operation, nodes: &[Arc<Node>], replies: &[Option<Result<T>>]) -> Error {
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
    let (all, quorum) = (nodes.len(), quorum(nodes.len()));
    let counting = all - reasons.len() - delays.len();
    // When enough votes count, if the servers that can't be reached stay away.
    delays.sort_unstable();
    let missing = quorum.saturating_sub(counting);
    let retry_after = missing.checked_sub(1).and_then(|last| delays.get(last).copied());
    if let Some(longest) = delays.last() {
        faults.push(Fault::Temporary);
        let left = retry_after.unwrap_or(*longest);
        reasons.push(format!(
            "{} of {all} servers are new or have lost their data ({}); their votes count in {left:.0?}, when every lease \
             of before has expired. Wait, or end it with `polylock admit` if these servers were never used \
             for locks before",
            delayed.len(),
            delayed.join(", "),
        ));
    }
    // What they all agree on is the reason; else another attempt may find more of them.
    let same = faults.first().copied().filter(|first| faults.iter().all(|fault| fault == first));
    let did = if votes { "have a vote that counts" } else { "have answered" };
    let advice = format!("{counting} of {all} servers {did}, and {quorum} must: {}", reasons.join("; "));
    let error = Cause::Unusable(same.unwrap_or(Fault::Temporary), advice).at(NAME, operation, "a majority");
    match (error, retry_after) {
        (Error::Unavailable(unavailable), Some(delay)) => unavailable.retry_after(delay).into(),
        (error, _) => error,
    }
}

/// The error of a release that was confirmed by too few of the servers that may have a vote.
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
            _ => reasons.push(format!("{}: no answer", nodes[index].address())),
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

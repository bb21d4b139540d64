//! Asking all nodes at once.

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, Error, Fault, Operation, Result, SystemClock};
use tokio::sync::mpsc;

use super::{NAME, node::Node};
use crate::error::Trouble;

/// The answers by node; `None` where `enough` said so after the others. It is an error if time was up, or if only those are left
/// that were silent before, and the others are a majority: then nothing depends on them.
///
/// Each node is asked in a task of its own that goes on to its end, so whoever is late does its work, too, unheard. One that is
/// silent, and on which nothing depends, is not asked while somebody else finds out whether it is back, but for a release: there
/// would be ever more who wait for it.
///
/// # Cancel safety
/// Dropping it stops none of the tasks.
pub(super) async fn poll<T, F>(
    operation: Operation,
    nodes: &[Arc<Node>],
    within: Duration,
    ask: impl Fn(usize, Arc<Node>) -> F,
    mut enough: impl FnMut(&Result<T>) -> bool,
) -> Vec<Option<Result<T>>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let silent: Vec<bool> = nodes.iter().map(|node| node.link.is_silent()).collect();
    let few = silent.iter().filter(|silent| !**silent).count() < quorum(nodes.len());
    let mut awaited: Vec<bool> = silent.iter().map(|silent| few || !silent).collect();
    let (tell, mut told) = mpsc::unbounded_channel();
    for (index, node) in nodes.iter().enumerate() {
        if !awaited[index] && node.link.is_dialling() && operation != Operation::Release {
            continue;
        }
        let (tell, asking) = (tell.clone(), ask(index, node.clone()));
        // An error means that nobody listens any more.
        tokio::spawn(async move { tell.send((index, asking.await)).ok() });
    }
    drop(tell);
    let mut answers: Vec<_> = nodes.iter().map(|_| None).collect();
    let deadline = SystemClock.now() + within;
    let in_time = loop {
        let heard = tokio::select! {
            biased;
            heard = told.recv() => heard,
            () = SystemClock.sleep_until(deadline) => None,
        };
        let Some((index, answer)) = heard else { break false };
        let done = enough(&answer);
        answers[index] = Some(answer);
        awaited[index] = false;
        if done || !awaited.contains(&true) {
            break true;
        }
    };
    for (index, node) in nodes.iter().enumerate() {
        if answers[index].is_none() && (silent[index] || !in_time) {
            answers[index] = Some(Err(node.link.failed(operation, Trouble::Silent(within))));
        }
    }
    answers
}

/// Too few nodes have answered, or have a vote: which, and why.
pub(super) fn too_few<T>(
    operation: Operation,
    nodes: &[Arc<Node>],
    answers: Vec<Option<Result<T>>>,
) -> Error {
    let (mut reasons, mut faults) = (Vec::new(), Vec::new());
    for (node, answer) in nodes.iter().zip(answers) {
        let (reason, fault) = match answer {
            Some(Ok(_)) => match node.youth() {
                Some(left) => (
                    format!("{} has restarted, and has no vote for another {left:.0?}", node.place()),
                    Fault::Temporary,
                ),
                None => continue,
            },
            // It was not waited for, so nothing is said against it.
            None => continue,
            Some(Err(Error::Unavailable(failure))) => (failure.source.to_string(), failure.fault),
            Some(Err(other)) => (format!("{}: {other}", node.place()), Fault::Permanent),
        };
        reasons.push(reason);
        faults.push(fault);
    }
    // What they all agree on is the reason; else another try may find more of them.
    let same = faults.first().copied().filter(|first| faults.iter().all(|fault| fault == first));
    let advice = format!(
        "{} of {} servers have a vote, and {} must: {}",
        nodes.len() - reasons.len(),
        nodes.len(),
        quorum(nodes.len()),
        reasons.join("; ")
    );
    Trouble::Unfit(same.unwrap_or(Fault::Temporary), advice).at(NAME, operation, "a majority")
}

/// How many are a majority of all, those that do not answer included.
pub(super) const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

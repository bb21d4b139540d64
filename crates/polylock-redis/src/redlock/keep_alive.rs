//! Extending the leases of many requests: one message to each server, and a majority for each request.

use std::{collections::BTreeMap, sync::Arc};

use polylock_core::{KeepAlive, Operation, Request, Result};

use super::{
    backend::{Redlock, forgotten_at, lost},
    node::{Ballot, Extensions, Node},
    poll::{poll, too_few},
    proposals::{Definite, Sent, UNKNOWN},
    scripts::Renewal,
    tally::{Extension, Renewals, Renewed},
    withdrawals::Cluster,
};

/// The replies of the servers about one request.
struct Tally {
    renewals: Renewals,
    /// Of a break.
    notice: String,
}

impl Tally {
    fn reply(&mut self, server: usize, extension: Extension, notice: &str, counts: bool) {
        if extension != Extension::Extended || counts {
            self.renewals.reply(server, extension);
        }
        if !notice.is_empty() {
            notice.clone_into(&mut self.notice);
        }
    }
}

impl Redlock {
    /// Extends what `requests` hold. The outcome for a request without a majority of known replies is unknown; it is an error if
    /// that is so for all of them.
    pub(super) async fn extend(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        // The longest: a request with a short lease does not have the others fail.
        let Some(timeout) = requests.iter().map(|request| self.cluster.timeout_of(request)).max() else {
            return Ok(Vec::new());
        };
        let (nodes, servers) = (&self.cluster.nodes, self.cluster.nodes.len());
        let batch: Arc<[Renewal]> = {
            let proposals = self.cluster.proposals();
            // A request of another client can be extended where it is, but not restored.
            let number = |request: &Request| proposals.token(request.id).unwrap_or(UNKNOWN);
            let renewal =
                |request: &Arc<Request>| Renewal { request: request.clone(), number: number(request) };
            requests.iter().map(renewal).collect()
        };
        let send = |_, node: Arc<Node>| {
            let (cluster, batch) = (self.cluster.clone(), batch.clone());
            Some(async move { node.keep_alive(&cluster.scripts, &batch, false, timeout).await.answer })
        };
        let tally = || Tally { renewals: Renewals::new(servers), notice: String::new() };
        let mut tallies: Vec<Tally> = requests.iter().map(|_| tally()).collect();
        let replies = poll(Operation::Renew, nodes, timeout, send, |server, reply| {
            if let Ok(Extensions { each, counts }) = reply {
                for (tally, (extension, notice)) in tallies.iter_mut().zip(each) {
                    tally.reply(server, *extension, notice, *counts);
                }
            }
            tallies.iter().all(|tally| tally.renewals.outcome().is_some())
        })
        .await;

        let outcomes: Vec<_> = tallies.iter().map(|tally| tally.renewals.outcome()).collect();
        let unknown = outcomes.iter().filter(|outcome| outcome.is_none()).count();
        if unknown > 0 {
            let error = too_few(Operation::Renew, nodes, &replies);
            if unknown == outcomes.len() {
                return Err(error);
            }
            tracing::warn!(unknown, %error, "some renewals of a batch are unknown, retrying these");
        }
        self.restore(&batch, &outcomes, &replies);
        Ok(tallies
            .iter()
            .zip(&outcomes)
            .zip(requests)
            .map(|((tally, outcome), request)| match outcome {
                Some(Renewed::Extended) => KeepAlive::Held { lease: request.ttl },
                Some(Renewed::Lost) => KeepAlive::Lost(lost(&tally.notice)),
                None => KeepAlive::Unknown,
            })
            .collect())
    }

    /// Records the leases that a majority has just extended, and has the servers vote again that have lost the vote.
    fn restore(
        &self,
        batch: &[Renewal],
        outcomes: &[Option<Renewed>],
        replies: &[Option<Result<Extensions>>],
    ) {
        let mut lost: BTreeMap<usize, Vec<(Sent, Renewal)>> = BTreeMap::new();
        let mut proposals = self.cluster.proposals();
        for (at, renewal) in batch.iter().enumerate() {
            let Renewal { request, number } = renewal;
            if outcomes[at] != Some(Renewed::Extended) || *number == UNKNOWN {
                continue;
            }
            proposals.extend(request.id, forgotten_at(request));
            for (server, reply) in replies.iter().enumerate() {
                let Some(Ok(Extensions { each, .. })) = reply else { continue };
                if each[at].0 != Extension::Absent {
                    continue;
                }
                // Recorded before it is sent, so that the release goes to this server, too.
                if let Some(sent) = proposals.sends(request.id, server, *number) {
                    lost.entry(server).or_default().push((sent, renewal.clone()));
                }
            }
        }
        drop(proposals);
        for (server, votes) in lost {
            let cluster = self.cluster.clone();
            // If it fails, the next renewal does it again. A release that overtakes it has the server refuse.
            tokio::spawn(async move { give_again(&cluster, server, votes).await });
        }
    }
}

/// Has `server` give these votes again.
async fn give_again(cluster: &Cluster, server: usize, votes: Vec<(Sent, Renewal)>) {
    let (sent, batch): (Vec<Sent>, Vec<_>) = votes.into_iter().unzip();
    let timeout = batch.iter().map(|renewal| cluster.timeout_of(&renewal.request)).max().unwrap_or_default();
    let ballot = cluster.nodes[server].keep_alive(&cluster.scripts, &batch, true, timeout).await;
    let mut proposals = cluster.proposals();
    for (at, (sent, renewal)) in sent.into_iter().zip(batch).enumerate() {
        if let Some(reply) = definite(&ballot, at, renewal.number) {
            proposals.replied(sent, reply);
        }
    }
}

/// The definite reply about one of the votes; `None` if anything may still happen.
fn definite(ballot: &Ballot<Extensions>, at: usize, number: i64) -> Option<Definite> {
    match &ballot.answer {
        Ok(Extensions { each, .. }) => match each[at].0 {
            Extension::Extended => Some(Definite::Voted(number)),
            // It has a vote.
            Extension::Marked => None,
            Extension::Absent => (!ballot.may_come_late).then_some(Definite::Refused),
        },
        Err(_) => (!ballot.was_sent).then_some(Definite::Refused),
    }
}

//! Extending the leases of many requests: one message to each server, and a majority for each request.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use polylock_core::{
    Clock, FencingToken, HoldTerms, KeepAlive, Mode, Moment, Operation, Request, Result, SystemClock,
};

use super::{
    backend::{RedlockBackend, lost_reason},
    node::{Attempt, Extensions, Node},
    poll::{no_majority, poll},
    proposals::{DefiniteReply, Sent, UNKNOWN},
    scripts::{Renewal, lease_left},
    tally::{Extension, Renewals, Renewed},
    withdrawals::ServerSet,
};

/// The replies of the servers about one request.
struct Tally {
    renewals: Renewals,
    /// The number of each vote that was extended, and the time left of it.
    votes: Vec<(i64, Duration)>,
    /// The notice of a break.
    notice: String,
}

impl Tally {
    fn reply(&mut self, server: usize, extension: Extension, text: &str, counts: bool) {
        if let Extension::Extended(number) = extension {
            if counts {
                self.renewals.reply(server, extension);
            }
            let ms = text.split(' ').nth(1).and_then(|ms| ms.parse().ok()).unwrap_or(0);
            self.votes.push((number, lease_left(Duration::from_millis(ms))));
            return;
        }
        self.renewals.reply(server, extension);
        if !text.is_empty() {
            text.clone_into(&mut self.notice);
        }
    }

    /// Returns true if a server has extended its vote for this number, and none has reported a break or a hold that was parked.
    fn is_held_somewhere(&self, number: i64) -> bool {
        let replied = |with| self.renewals.replies.contains(&Some(with));
        self.notice.is_empty() && !replied(Extension::Marked) && replied(Extension::Extended(number))
    }

    /// Returns the hold for this number, which a majority has extended, to `ttl` or beyond.
    fn held(&self, number: i64, ttl: Duration) -> KeepAlive {
        let votes = self.votes.iter().filter(|(other, _)| *other == number);
        let left = votes.map(|(_, left)| *left).min().unwrap_or_default();
        let terms = FencingToken::new(number).map(|token| HoldTerms::new(token, Mode::Exclusive));
        KeepAlive::Held { lease: left.max(ttl), terms }
    }
}

impl RedlockBackend {
    /// Extends the holds of `requests`. The outcome for a request without a majority of known replies is unknown; if that is so for all of
    /// them, it is an error.
    pub(super) async fn extend(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let began = SystemClock.now();
        // The longest timeout, so that a request with a short lease does not make the others fail.
        let Some(timeout) = requests.iter().map(|request| self.servers.timeout_of(request)).max() else {
            return Ok(Vec::new());
        };
        let (nodes, servers) = (&self.servers.nodes, self.servers.nodes.len());
        let batch: Arc<[Renewal]> = {
            let proposals = self.servers.proposals();
            // The vote for a request of another client can be extended, but not restored.
            let number = |request: &Request| proposals.token(request.id).unwrap_or(UNKNOWN);
            let renewal =
                |request: &Arc<Request>| Renewal { request: request.clone(), number: number(request) };
            requests.iter().map(renewal).collect()
        };
        let send = |_, node: Arc<Node>| {
            let (servers, batch) = (self.servers.clone(), batch.clone());
            Some(async move { node.keep_alive(&servers.scripts, &batch, false, timeout).await.reply })
        };
        let tally = || Tally { renewals: Renewals::new(servers), votes: Vec::new(), notice: String::new() };
        let mut tallies: Vec<Tally> = requests.iter().map(|_| tally()).collect();
        let replies = poll(Operation::Renew, nodes, timeout, send, |server, reply| {
            if let Ok(Extensions { outcomes, counts }) = reply {
                for (tally, (extension, text)) in tallies.iter_mut().zip(outcomes) {
                    tally.reply(server, *extension, text, *counts);
                }
            }
            tallies.iter().all(|tally| tally.renewals.outcome().is_some())
        })
        .await;

        let outcomes: Vec<_> = tallies.iter().map(|tally| tally.renewals.outcome()).collect();
        self.restore(began, &batch, &tallies, &outcomes, &replies);
        let unknown = outcomes.iter().filter(|outcome| outcome.is_none()).count();
        if unknown > 0 {
            let error = no_majority(Operation::Renew, nodes, &replies);
            if unknown == outcomes.len() {
                return Err(error);
            }
            tracing::warn!(unknown, %error, "some renewals of a batch are unknown, retrying these");
        }
        Ok(tallies
            .iter()
            .zip(&outcomes)
            .zip(requests)
            .map(|((tally, outcome), request)| match outcome {
                Some(Renewed::Extended(number)) => tally.held(*number, request.ttl),
                Some(Renewed::Lost) => KeepAlive::Lost(lost_reason(&tally.notice)),
                None => KeepAlive::Unknown,
            })
            .collect())
    }

    /// Records the leases that a majority has extended since `began`, and gives votes again to servers that have none.
    ///
    /// Of five servers, three have voted for a hold, and one of these is silent: then the other two get the vote without a majority, as long
    /// as the lease that the last one has confirmed lasts. But a server that has lost its data, and may have forgotten why it must refuse this
    /// number, gets it from a majority only.
    fn restore(
        &self,
        began: Moment,
        batch: &[Renewal],
        tallies: &[Tally],
        outcomes: &[Option<Renewed>],
        replies: &[Option<Result<Extensions>>],
    ) {
        let now = SystemClock.now();
        let mut lost: BTreeMap<usize, Vec<(Sent, Renewal)>> = BTreeMap::new();
        let mut proposals = self.servers.proposals();
        for (index, renewal) in batch.iter().enumerate() {
            let Renewal { request, number } = renewal;
            let tally = &tallies[index];
            let by_majority = match outcomes[index] {
                Some(Renewed::Extended(extended)) if extended == *number => {
                    proposals.extend(request.id, began + request.ttl, request.obsolete_at(now));
                    true
                }
                None if tally.is_held_somewhere(*number) && proposals.is_held(request.id, now) => false,
                _ => continue,
            };
            for (server, reply) in replies.iter().enumerate() {
                let Some(Ok(Extensions { outcomes, counts })) = reply else { continue };
                if outcomes[index].0 != Extension::Absent || !(by_majority || *counts) {
                    continue;
                }
                // Recorded before it is sent, so that the release goes to this server, too.
                if let Some(sent) = proposals.on_send(request.id, server, *number) {
                    lost.entry(server).or_default().push((sent, renewal.clone()));
                }
            }
        }
        drop(proposals);
        for (server, votes) in lost {
            let servers = self.servers.clone();
            // If it fails, the next renewal repeats it. If a release overtakes it, the server refuses it.
            self.servers.nodes[server]
                .executor()
                .spawn(async move { restore_votes(&servers, server, votes).await });
        }
    }
}

/// Makes `server` vote again for these requests.
async fn restore_votes(servers: &ServerSet, server: usize, votes: Vec<(Sent, Renewal)>) {
    let (sent, batch): (Vec<Sent>, Vec<_>) = votes.into_iter().unzip();
    let timeout = batch.iter().map(|renewal| servers.timeout_of(&renewal.request)).max().unwrap_or_default();
    let attempt = servers.nodes[server].keep_alive(&servers.scripts, &batch, true, timeout).await;
    let mut proposals = servers.proposals();
    for (index, (sent, renewal)) in sent.into_iter().zip(batch).enumerate() {
        if let Some(reply) = definite_reply(&attempt, index, renewal.number) {
            proposals.on_reply(sent, reply);
        }
    }
}

/// Returns the definite reply about one of the votes; `None` if the message may still be executed.
fn definite_reply(attempt: &Attempt<Extensions>, index: usize, number: i64) -> Option<DefiniteReply> {
    match &attempt.reply {
        Ok(Extensions { outcomes, .. }) => match outcomes[index].0 {
            Extension::Extended(_) => Some(DefiniteReply::Voted(number)),
            // The server has a vote.
            Extension::Marked => None,
            Extension::Absent => (!attempt.may_execute_late).then_some(DefiniteReply::Refused),
        },
        Err(_) => (!attempt.was_sent).then_some(DefiniteReply::Refused),
    }
}

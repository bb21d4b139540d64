//! The proposals of this client, and the servers that may have voted for them: a state machine without I/O.
//!
//! The numbers that a request proposes grow. Each message about a number can be executed late, after the client has stopped waiting for the
//! reply, or never. So the state records, for each request and server, the numbers that may have left a vote there, and every event names
//! its number:
//!
//! | event | method |
//! |---|---|
//! | a number is proposed, and the numbers before it are withdrawn | [`propose`](Proposals::propose) |
//! | a message that may leave a vote is sent to a server | [`on_send`](Proposals::on_send) |
//! | its definite reply has arrived (a missing reply is no event: anything may still happen) | [`on_reply`](Proposals::on_reply) |
//! | a majority has voted for a number, or too few have | [`grant`](Proposals::grant), [`withdraw`](Proposals::withdraw) |
//! | the lock is released | [`release`](Proposals::release) |
//! | a withdrawal is sent, acknowledged, has no reply, or was never sent | [`withdrawal`](Proposals::withdrawal) and [`on_withdrawal_sent`](Proposals::on_withdrawal_sent), [`on_acknowledgement`](Proposals::on_acknowledgement), [`on_no_reply`](Proposals::on_no_reply), [`on_unsent`](Proposals::on_unsent) |
//!
//! Invariants:
//! 1. A server that has a vote of a request, or may still give one, is *open*.
//! 2. A withdrawal names a number that is withdrawn, and with it all smaller ones. The number of a live proposal is greater than that,
//!    so no withdrawal removes a vote for a live proposal, however late it is executed.
//! 3. A server is open until it has acknowledged the withdrawal, or has definitely refused all that was sent to it.

use polylock_core::{LockName, Moment, RequestId, requests::RequestTable};

use super::{
    server_votes::{Reply, STICKY, Server},
    tally::quorum,
};

/// The number of a request that another client has proposed. A withdrawal with it removes a vote for any number.
pub(super) const UNKNOWN: i64 = i64::MAX;

/// The state of all requests of this client.
#[derive(Debug, Clone)]
pub(super) struct Proposals {
    servers: usize,
    /// Each record is kept until no vote of its request can be left, or its outcome is not used any more.
    records: RequestTable<Record>,
}

/// The state of one request.
#[derive(Debug, Clone)]
pub(super) struct Record {
    name: LockName,
    /// The greatest number proposed.
    pub(super) number: i64,
    /// This number and all smaller ones are withdrawn; 0 if none is.
    pub(super) withdrawn: i64,
    pub(super) phase: Phase,
    /// The time until which a majority has confirmed the hold.
    held_until: Moment,
    /// True if a server may have recorded that the request waits.
    may_be_queued: bool,
    /// True if it was reported that the release is not confirmed.
    is_reported: bool,
    pub(super) servers: Box<[Server]>,
    /// The notice of a break by force.
    notice: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// The request proposes, or waits to propose again.
    Claiming,
    /// A majority has voted for this number.
    Held(i64),
    /// The request withdraws its votes, for the last time. The number is the one that it held, 0 if none.
    Releasing(i64),
    /// The outcome of the release is known. Some servers may still be open.
    Released,
}

/// A message that may leave a vote, in transit to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    request: RequestId,
    server: usize,
    number: i64,
}

/// A definite reply to such a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DefiniteReply {
    /// The server has a vote for this number of the request.
    Voted(i64),
    /// The server has no vote of the request from this message, and will give none: it has refused, or the message was never sent.
    Refused,
}

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    /// A majority has removed its votes; or the request did not hold, and others can have a majority now.
    Released,
    /// Too few servers can have had a vote for a majority: the hold had ended before. The notice is that of a break by force, empty
    /// if there was none.
    Lost(String),
}

impl Record {
    fn new(name: &LockName, number: i64, servers: Box<[Server]>) -> Self {
        let name = name.clone();
        Self {
            name,
            number,
            withdrawn: 0,
            phase: Phase::Claiming,
            held_until: Moment::default(),
            may_be_queued: false,
            is_reported: false,
            servers,
            notice: String::new(),
        }
    }

    fn open(&self) -> usize {
        self.servers.iter().filter(|server| server.open > 0).count()
    }

    fn replies(&self, reply: Reply) -> usize {
        self.servers.iter().filter(|server| server.reply == reply).count()
    }

    fn outcome(&self) -> Option<Outcome> {
        let (servers, Phase::Releasing(held)) = (self.servers.len(), self.phase) else { return None };
        let quorum = quorum(servers);
        if held == 0 {
            return (servers - self.open() >= quorum).then_some(Outcome::Released);
        }
        if servers - self.replies(Reply::Absent) < quorum {
            return Some(Outcome::Lost(self.notice.clone()));
        }
        (self.replies(Reply::Removed) >= quorum).then_some(Outcome::Released)
    }
}

impl Proposals {
    /// Creates a state without requests, for this many servers.
    pub(super) fn new(servers: usize) -> Self {
        Self { servers, records: RequestTable::new() }
    }

    /// Returns the state of `request`.
    pub(super) fn record(&self, request: RequestId) -> Option<&Record> {
        self.records.get(&request)
    }

    /// Proposes `number` for `request`. It must be greater than all before. Returns the greatest number that is withdrawn.
    pub(super) fn propose(
        &mut self,
        request: RequestId,
        name: &LockName,
        number: i64,
        now: Moment,
        until: Moment,
    ) -> i64 {
        let count = self.servers;
        let new = || Record::new(name, number, vec![Server::default(); count].into());
        let record = self.records.update(request, now, until, new);
        if record.number == UNKNOWN {
            // 1. The request was released, because another client may have claimed it: a withdrawal of any number.
            // 2. A majority has confirmed that; at another server the withdrawal is delayed.
            // 3. The server votes for this number, and then removes the vote, while the client counts it.
            // So a server that has not confirmed the withdrawal receives no proposal.
            let barred =
                |server: &Server| Server { is_barred: server.may_execute_late(), ..Server::default() };
            *record = Record::new(name, number, record.servers.iter().map(barred).collect());
        }
        (record.number, record.phase) = (number.max(record.number), Phase::Claiming);
        record.withdrawn
    }

    /// Records that a message with `number`, which may leave a vote, is about to be sent to `server`. Returns `None` if it must not be
    /// sent, because the number was withdrawn in the meantime, or an earlier withdrawal may still remove the vote.
    pub(super) fn on_send(&mut self, request: RequestId, server: usize, number: i64) -> Option<Sent> {
        let is_open = |record: &&mut Record| number > record.withdrawn && !record.servers[server].is_barred;
        let record = self.records.get_mut(&request).filter(is_open)?;
        record.servers[server].on_send(number);
        Some(Sent { request, server, number })
    }

    /// Records the definite reply to a message.
    pub(super) fn on_reply(&mut self, sent: Sent, reply: DefiniteReply) {
        let Some(record) = self.records.get_mut(&sent.request) else { return };
        let server = &mut record.servers[sent.server];
        match reply {
            DefiniteReply::Voted(number) => {
                server.on_vote(number);
                record.number = record.number.max(number);
            }
            DefiniteReply::Refused => server.on_refusal(sent.number),
        }
        self.remove_if_complete(sent.request);
    }

    /// Records that a majority has voted for `token`, and that the votes last until `held_until`. Returns false if it was withdrawn in the
    /// meantime.
    pub(super) fn grant(
        &mut self,
        request: RequestId,
        token: i64,
        held_until: Moment,
        until: Moment,
    ) -> bool {
        let record = self.records.get_mut(&request);
        let Some(record) = record.filter(|record| token > record.withdrawn) else { return false };
        (record.phase, record.held_until) = (Phase::Held(token), held_until);
        record.number = record.number.max(token);
        for server in &mut record.servers {
            (server.reply, server.is_uncertain, server.under_way) = (Reply::Missing, false, None);
        }
        self.records.keep_until(&request, until);
        true
    }

    /// Returns the number that `request` holds.
    pub(super) fn token(&self, request: RequestId) -> Option<i64> {
        match self.record(request)?.phase {
            Phase::Held(token) => Some(token),
            _ => None,
        }
    }

    /// Records that a majority has extended the lease of `request`, to `held_until` at least.
    pub(super) fn extend(&mut self, request: RequestId, held_until: Moment, until: Moment) {
        self.records.extend(&request, until);
        if let Some(record) = self.records.get_mut(&request) {
            record.held_until = record.held_until.max(held_until);
        }
    }

    /// Returns true if the lease of `request` that a majority has confirmed has not ended at `now`.
    pub(super) fn is_held(&self, request: RequestId, now: Moment) -> bool {
        self.record(request).is_some_and(|record| now < record.held_until)
    }

    /// Withdraws all numbers that were proposed for `request`, which goes on claiming. Returns the number of servers that have to
    /// acknowledge it.
    pub(super) fn withdraw(&mut self, request: RequestId, until: Moment) -> usize {
        self.records.extend(&request, until);
        let Some(record) = self.records.get_mut(&request) else { return 0 };
        record.withdrawn = record.number;
        record.phase = Phase::Claiming;
        record.open()
    }

    /// Records that a server may have recorded that `request` waits.
    pub(super) fn mark_queued(&mut self, request: RequestId) {
        if let Some(record) = self.records.get_mut(&request) {
            record.may_be_queued = true;
        }
    }

    /// Returns true if a server may have recorded that `request` waits.
    pub(super) fn may_be_queued(&self, request: RequestId) -> bool {
        self.record(request).is_some_and(|record| record.may_be_queued)
    }

    /// Returns true if this client has claimed `request`, or has a release of it to complete.
    pub(super) fn is_known(&self, request: RequestId) -> bool {
        let has_claim = |record: &Record| record.number != UNKNOWN || record.phase != Phase::Released;
        self.record(request).is_some_and(has_claim)
    }

    /// Releases `request`: withdraws all its numbers for good. A repeated release continues the first one.
    pub(super) fn release(&mut self, request: RequestId, until: Moment) {
        self.records.extend(&request, until);
        let Some(record) = self.records.get_mut(&request) else { return };
        record.withdrawn = record.number;
        let held = match record.phase {
            Phase::Releasing(_) => return,
            Phase::Claiming => 0,
            Phase::Held(token) => token,
            // It was released before, so its votes are gone except at open servers.
            Phase::Released => record.number,
        };
        record.phase = Phase::Releasing(held);
        for server in &mut record.servers {
            // A server that is not open has no vote.
            let reply = if server.open == 0 { Reply::Absent } else { Reply::Missing };
            (server.reply, server.is_uncertain, server.under_way) = (reply, false, None);
        }
    }

    /// Releases a request without a record, because another client has claimed it: any server may have a vote.
    pub(super) fn release_unknown(
        &mut self,
        request: RequestId,
        name: &LockName,
        now: Moment,
        until: Moment,
    ) {
        let before = self.records.remove(&request);
        let open = |server: usize| {
            let is_uncertain =
                before.as_ref().is_some_and(|record| record.servers[server].may_execute_late());
            Server { open: UNKNOWN, unresolved: STICKY, is_uncertain, ..Server::default() }
        };
        let servers = (0..self.servers).map(open).collect();
        let mut record = Record::new(name, UNKNOWN, servers);
        (record.withdrawn, record.phase) = (UNKNOWN, Phase::Releasing(UNKNOWN));
        self.records.update(request, now, until, || record);
    }

    /// Returns the greatest number of `request` that is withdrawn; 0 if none is.
    pub(super) fn withdrawn(&self, request: RequestId) -> i64 {
        self.record(request).map_or(0, |record| record.withdrawn)
    }

    /// Returns the number to withdraw at `server`, right before the withdrawal is sent; `None` if the server has nothing to acknowledge.
    pub(super) fn withdrawal(&self, request: RequestId, server: usize) -> Option<i64> {
        let record = self.record(request)?;
        let must_acknowledge = record.servers[server].must_acknowledge(record.withdrawn);
        must_acknowledge.then_some(record.withdrawn)
    }

    /// Returns the requests with a withdrawal that `server` has to acknowledge, oldest proposal first.
    pub(super) fn unacknowledged(&self, server: usize, now: Moment) -> Vec<(RequestId, LockName)> {
        let must_acknowledge = |record: &Record| record.servers[server].must_acknowledge(record.withdrawn);
        let live = self.records.live(now).filter(|(_, record)| record.number != UNKNOWN);
        let records = live.filter(|(_, record)| must_acknowledge(record));
        let mut unacknowledged: Vec<_> = records.collect();
        unacknowledged.sort_by_key(|(_, record)| record.number);
        unacknowledged.into_iter().map(|(request, record)| (*request, record.name.clone())).collect()
    }

    /// Records that a withdrawal of `request` is about to be sent to `server`. Of two withdrawals in transit on different connections, the
    /// reply to the one that finds no vote may arrive first.
    pub(super) fn on_withdrawal_sent(&mut self, request: RequestId, server: usize, now: Moment) {
        let Some(record) = self.records.get_mut(&request) else { return };
        let server = &mut record.servers[server];
        server.is_uncertain |= server.under_way.is_some();
        server.under_way = Some(now);
    }

    /// Returns true if a withdrawal of `request` was sent to `server` after `since` and has no reply yet.
    pub(super) fn is_under_way(&self, request: RequestId, server: usize, since: Moment) -> bool {
        let record = self.record(request);
        record.and_then(|record| record.servers[server].under_way).is_some_and(|sent| sent > since)
    }

    /// Records that the withdrawal of `request` was not sent to `server` after all.
    pub(super) fn on_unsent(&mut self, request: RequestId, server: usize) {
        if let Some(record) = self.records.get_mut(&request) {
            record.servers[server].under_way = None;
        }
    }

    /// Records that `server` has acknowledged the withdrawal of `number`. `removed` is false if it had no vote; `may_be_repeated` is true
    /// if an earlier copy of the message may have removed it. `notice` is that of a break by force, or empty.
    pub(super) fn on_acknowledgement(
        &mut self,
        request: RequestId,
        server: usize,
        number: i64,
        removed: bool,
        may_be_repeated: bool,
        notice: &str,
    ) {
        let Some(record) = self.records.get_mut(&request) else { return };
        if number == UNKNOWN && record.number != UNKNOWN {
            // It was sent before the first proposal of this record, so it confirms nothing about votes for later numbers.
            return;
        }
        let server = &mut record.servers[server];
        server.is_uncertain |= number == UNKNOWN && may_be_repeated;
        // The withdrawal of a smaller number does not concern the vote for the token.
        if let Phase::Releasing(held) = record.phase
            && number >= held
            && server.open > 0
            && server.reply == Reply::Missing
        {
            let had_vote = removed || may_be_repeated || server.is_uncertain;
            server.reply = if had_vote { Reply::Removed } else { Reply::Absent };
            if !notice.is_empty() {
                server.reply = Reply::Absent;
                notice.clone_into(&mut record.notice);
            }
        }
        server.under_way = None;
        server.on_acknowledgement(number);
        self.remove_if_complete(request);
    }

    /// Records that the withdrawal of `number` was sent to `server`, which may have executed it, and that there is no reply.
    pub(super) fn on_no_reply(&mut self, request: RequestId, server: usize, number: i64) {
        let Some(record) = self.records.get_mut(&request) else { return };
        record.servers[server].under_way = None;
        if matches!(record.phase, Phase::Releasing(held) if number >= held) {
            record.servers[server].is_uncertain = true;
        }
    }

    /// Returns the outcome of the release of `request`, as soon as it is known.
    pub(super) fn outcome(&self, request: RequestId) -> Option<Outcome> {
        self.record(request)?.outcome()
    }

    /// Ends the release of `request`, and returns its outcome. Withdrawals that servers have not acknowledged yet stay recorded.
    pub(super) fn finish(&mut self, request: RequestId) -> Option<Outcome> {
        let record = self.records.get_mut(&request)?;
        let outcome = record.outcome()?;
        record.phase = Phase::Released;
        self.remove_if_complete(request);
        Some(outcome)
    }

    /// Returns true if `request` held, its release is not confirmed, and this was not reported before.
    pub(super) fn report_unconfirmed(&mut self, request: RequestId) -> bool {
        let record = self.records.get_mut(&request);
        let held = record.filter(|record| matches!(record.phase, Phase::Releasing(held) if held != 0));
        held.is_some_and(|record| !std::mem::replace(&mut record.is_reported, true))
    }

    /// Drops a request that does not wait and was not granted, unless servers have to acknowledge its withdrawal.
    pub(super) fn drop_request(&mut self, request: RequestId) {
        if let Some(record) = self.records.get_mut(&request) {
            record.phase = Phase::Released;
            self.remove_if_complete(request);
        }
    }

    /// Returns the servers that may have a vote of `request`.
    pub(super) fn open_servers(&self, request: RequestId) -> Vec<usize> {
        let record = self.record(request);
        let open =
            |record: &Record| (0..self.servers).filter(|index| record.servers[*index].open > 0).collect();
        record.map(open).unwrap_or_default()
    }

    /// Returns the number of records.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    fn remove_if_complete(&mut self, request: RequestId) {
        // An unknown request is remembered until no withdrawal of it can be executed late, see `propose`.
        let is_late =
            |record: &Record| record.number == UNKNOWN && record.servers.iter().any(Server::may_execute_late);
        let is_complete =
            |record: &Record| record.phase == Phase::Released && record.open() == 0 && !is_late(record);
        if self.record(request).is_some_and(is_complete) {
            self.records.remove(&request);
        }
    }
}

//! The proposals of this client, and the servers that may have voted for them: a state machine without I/O.
//!
//! A request proposes numbers that grow. Each message about a number can be carried out late, after the client has stopped waiting
//! for the reply, or never. So for each request and server the state records which numbers may have left a vote there, and every
//! event names the number that it is about:
//!
//! | event | method |
//! |---|---|
//! | a number is proposed, and the numbers before it are withdrawn | [`propose`](Proposals::propose) |
//! | a message that may leave a vote is sent to a server | [`sends`](Proposals::sends) |
//! | its definite reply has arrived (a missing reply is no event: anything may still happen) | [`replied`](Proposals::replied) |
//! | a majority has voted for a number, or too few have | [`grant`](Proposals::grant), [`withdraw`](Proposals::withdraw) |
//! | the lock is released | [`release`](Proposals::release) |
//! | a withdrawal is sent, acknowledged, or not answered | [`withdrawal`](Proposals::withdrawal), [`acknowledged`](Proposals::acknowledged), [`unanswered`](Proposals::unanswered) |
//!
//! Invariants:
//! 1. A server that has a vote of a request, or may still give one, is *open*.
//! 2. A withdrawal names a number that is withdrawn, and with it all smaller ones. The number of a live proposal is greater than that,
//!    so no withdrawal removes a vote for a live proposal, however late it is carried out.
//! 3. A server is open until it has acknowledged the withdrawal, or has definitely refused all that was sent to it.

use std::collections::HashMap;

use polylock_core::{LockName, Moment, RequestId};

use super::tally::quorum;

/// The number of a request that another client has proposed: a withdrawal with it removes a vote for any number.
pub(super) const UNKNOWN: i64 = i64::MAX;

/// How many records there are at least before the expired ones are looked for.
const SWEEP: usize = 64;

/// The state of all requests of this client.
#[derive(Debug)]
pub(super) struct Proposals {
    servers: usize,
    records: HashMap<RequestId, Record>,
    /// With this many records, the expired ones are removed.
    sweep_at: usize,
}

/// The state of one request.
#[derive(Debug)]
struct Record {
    name: LockName,
    /// The greatest number proposed.
    number: i64,
    /// This number and all smaller ones are withdrawn; 0 if none is.
    withdrawn: i64,
    phase: Phase,
    /// Whether a server may have noted that the request waits.
    is_noted: bool,
    /// Whether it was reported that the release is not confirmed.
    is_reported: bool,
    /// When the record can be forgotten: no vote that it is about can be left, or nobody needs to know.
    until: Moment,
    servers: Box<[Server]>,
    /// Of a break by force.
    notice: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It proposes, or waits to propose again.
    Claims,
    /// A majority has voted for this number.
    Holds(i64),
    /// It withdraws its votes, for the last time. The number is the one that it held, 0 if none.
    Releases(i64),
    /// The outcome of the release is known. Servers may be open yet.
    Released,
}

/// The state of one request at one server.
#[derive(Debug, Clone, Copy, Default)]
struct Server {
    /// The greatest number for which the server may have a vote, or may still give one; 0 if there is none.
    open: i64,
    /// How many messages with the number `open` have no definite reply; [`STICKY`] if no reply to them can close it.
    unresolved: u8,
    /// The number that was open before `open`; 0 if none was.
    before: i64,
    /// The greatest number whose withdrawal it has acknowledged.
    acknowledged: i64,
    /// The server's reply to the release.
    reply: Reply,
    /// Whether a release was sent to it that it may have carried out without a reply.
    is_uncertain: bool,
}

const STICKY: u8 = u8::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Reply {
    #[default]
    Missing,
    /// It has removed its vote, or may have removed it when an earlier release was not answered.
    Removed,
    /// It had no vote.
    Absent,
}

/// A message that may leave a vote, on its way to a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    request: RequestId,
    server: usize,
    number: i64,
}

/// A definite reply to such a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Definite {
    /// The server has a vote for this number of the request.
    Voted(i64),
    /// It has no vote of the request by this message, and will give none: it has refused, or the message was never sent.
    Refused,
}

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A majority has removed its votes; or of a request that did not hold, others can have a majority now.
    Released,
    /// Too few servers can have had a vote for a majority: the hold had ended before. The notice is that of a break by force, empty
    /// if there was none.
    Lost(String),
}

impl Server {
    fn sends(&mut self, number: i64) {
        if number > self.open {
            (self.before, self.open, self.unresolved) = (self.open, number, 1);
        } else if number == self.open {
            self.unresolved = self.unresolved.saturating_add(1);
        }
    }

    fn voted(&mut self, number: i64) {
        if number > self.acknowledged && number >= self.open {
            (self.open, self.unresolved) = (number, STICKY);
        }
    }

    fn refused(&mut self, number: i64) {
        if number != self.open || self.unresolved == STICKY {
            return;
        }
        self.unresolved = self.unresolved.saturating_sub(1);
        if self.unresolved == 0 {
            // What was open before is open again, and nothing is known of the messages that made it so.
            let open = if self.before > self.acknowledged { self.before } else { 0 };
            (self.open, self.unresolved, self.before) = (open, STICKY, 0);
        }
    }

    fn acknowledges(&mut self, number: i64) {
        self.acknowledged = self.acknowledged.max(number);
        if self.open <= number {
            (self.open, self.before) = (0, 0);
        }
    }

    /// Whether it has to acknowledge the withdrawal of `withdrawn`.
    const fn owes(&self, withdrawn: i64) -> bool {
        0 < self.open && self.open <= withdrawn
    }
}

impl Record {
    fn new(name: &LockName, number: i64, until: Moment, servers: Box<[Server]>) -> Self {
        let name = name.clone();
        Self {
            name,
            number,
            withdrawn: 0,
            phase: Phase::Claims,
            is_noted: false,
            is_reported: false,
            until,
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
        let (servers, Phase::Releases(held)) = (self.servers.len(), self.phase) else { return None };
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
    /// No requests yet, at this many servers.
    pub(super) fn new(servers: usize) -> Self {
        Self { servers, records: HashMap::new(), sweep_at: SWEEP }
    }

    /// Proposes `number` for `request`, which must be greater than all before. Returns the greatest number that is withdrawn.
    pub(super) fn propose(
        &mut self,
        request: RequestId,
        name: &LockName,
        number: i64,
        now: Moment,
        until: Moment,
    ) -> i64 {
        self.sweep(now);
        let servers = self.servers;
        let new = || Record::new(name, number, until, vec![Server::default(); servers].into());
        let record = self.records.entry(request).or_insert_with(new);
        if record.number == UNKNOWN {
            *record = new();
        }
        (record.number, record.phase, record.until) = (number.max(record.number), Phase::Claims, until);
        record.withdrawn
    }

    /// A message with `number`, which may leave a vote, is about to be sent to `server`. `None` if it must not be sent, because
    /// the number was withdrawn meanwhile.
    pub(super) fn sends(&mut self, request: RequestId, server: usize, number: i64) -> Option<Sent> {
        let record = self.records.get_mut(&request).filter(|record| number > record.withdrawn)?;
        record.servers[server].sends(number);
        Some(Sent { request, server, number })
    }

    /// The definite reply to a message has arrived.
    pub(super) fn replied(&mut self, sent: Sent, reply: Definite) {
        let Some(record) = self.records.get_mut(&sent.request) else { return };
        let server = &mut record.servers[sent.server];
        match reply {
            Definite::Voted(number) => {
                server.voted(number);
                record.number = record.number.max(number);
            }
            Definite::Refused => server.refused(sent.number),
        }
        self.forget_if_settled(sent.request);
    }

    /// A majority has voted for `token`; false if it was withdrawn meanwhile.
    pub(super) fn grant(&mut self, request: RequestId, token: i64, until: Moment) -> bool {
        let record = self.records.get_mut(&request);
        let Some(record) = record.filter(|record| token > record.withdrawn) else { return false };
        (record.phase, record.until) = (Phase::Holds(token), until);
        record.number = record.number.max(token);
        for server in &mut record.servers {
            (server.reply, server.is_uncertain) = (Reply::Missing, false);
        }
        true
    }

    /// The number that `request` holds.
    pub(super) fn token(&self, request: RequestId) -> Option<i64> {
        match self.records.get(&request)?.phase {
            Phase::Holds(token) => Some(token),
            _ => None,
        }
    }

    /// The lease of `request` was extended.
    pub(super) fn extend(&mut self, request: RequestId, until: Moment) {
        if let Some(record) = self.records.get_mut(&request) {
            record.until = record.until.max(until);
        }
    }

    /// Withdraws all numbers that were proposed for `request`, which goes on claiming. Returns how many servers are to
    /// acknowledge it.
    pub(super) fn withdraw(&mut self, request: RequestId, until: Moment) -> usize {
        let Some(record) = self.records.get_mut(&request) else { return 0 };
        record.withdrawn = record.number;
        (record.phase, record.until) = (Phase::Claims, record.until.max(until));
        record.open()
    }

    /// A server may have noted that `request` waits.
    pub(super) fn note(&mut self, request: RequestId) {
        if let Some(record) = self.records.get_mut(&request) {
            record.is_noted = true;
        }
    }

    /// Whether a server may have noted that `request` waits.
    pub(super) fn is_noted(&self, request: RequestId) -> bool {
        self.records.get(&request).is_some_and(|record| record.is_noted)
    }

    /// Whether there is a record of `request`.
    pub(super) fn knows(&self, request: RequestId) -> bool {
        self.records.contains_key(&request)
    }

    /// Releases `request`: withdraws all its numbers for good. A release that is tried again continues.
    pub(super) fn release(&mut self, request: RequestId, until: Moment) {
        let Some(record) = self.records.get_mut(&request) else { return };
        record.withdrawn = record.number;
        record.until = record.until.max(until);
        let held = match record.phase {
            Phase::Releases(_) => return,
            Phase::Claims => 0,
            Phase::Holds(token) => token,
            // It was released before, so its votes are gone but where a server is still open.
            Phase::Released => record.number,
        };
        record.phase = Phase::Releases(held);
        for server in &mut record.servers {
            // A server that cannot have a vote has none.
            let reply = if server.open == 0 { Reply::Absent } else { Reply::Missing };
            (server.reply, server.is_uncertain) = (reply, false);
        }
    }

    /// Releases a request of which there is no record, because another client has claimed it: any server may have a vote.
    pub(super) fn release_unknown(
        &mut self,
        request: RequestId,
        name: &LockName,
        now: Moment,
        until: Moment,
    ) {
        self.sweep(now);
        let open = Server { open: UNKNOWN, unresolved: STICKY, ..Server::default() };
        let mut record = Record::new(name, UNKNOWN, until, vec![open; self.servers].into());
        (record.withdrawn, record.phase) = (UNKNOWN, Phase::Releases(UNKNOWN));
        self.records.insert(request, record);
    }

    /// The greatest number of `request` that is withdrawn; 0 if none is.
    pub(super) fn withdrawn(&self, request: RequestId) -> i64 {
        self.records.get(&request).map_or(0, |record| record.withdrawn)
    }

    /// The number that is to be withdrawn at `server`, right before the withdrawal is sent; `None` if the server has nothing to
    /// acknowledge.
    pub(super) fn withdrawal(&self, request: RequestId, server: usize) -> Option<i64> {
        let record = self.records.get(&request)?;
        let owes = record.servers[server].owes(record.withdrawn);
        owes.then_some(record.withdrawn)
    }

    /// The requests whose withdrawal `server` has to acknowledge, oldest proposal first.
    pub(super) fn owed(&self, server: usize, now: Moment) -> Vec<(RequestId, LockName)> {
        let owes = |record: &Record| record.servers[server].owes(record.withdrawn);
        let live = |record: &Record| record.until > now && record.number != UNKNOWN;
        let records = self.records.iter().filter(|(_, record)| live(record) && owes(record));
        let mut owed: Vec<_> = records.collect();
        owed.sort_by_key(|(_, record)| record.number);
        owed.into_iter().map(|(request, record)| (*request, record.name.clone())).collect()
    }

    /// `server` has acknowledged the withdrawal of `number`. `removed` is false if it had no vote; `may_be_repeated` if an earlier
    /// copy of the message may have removed it. `notice` is that of a break by force, or empty.
    pub(super) fn acknowledged(
        &mut self,
        request: RequestId,
        server: usize,
        number: i64,
        removed: bool,
        may_be_repeated: bool,
        notice: &str,
    ) {
        let Some(record) = self.records.get_mut(&request) else { return };
        let server = &mut record.servers[server];
        // A withdrawal of a smaller number says nothing of the vote for the token.
        if let Phase::Releases(held) = record.phase
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
        server.acknowledges(number);
        self.forget_if_settled(request);
    }

    /// The withdrawal of `number` was sent to `server`, which may have carried it out, and was not answered.
    pub(super) fn unanswered(&mut self, request: RequestId, server: usize, number: i64) {
        let Some(record) = self.records.get_mut(&request) else { return };
        if matches!(record.phase, Phase::Releases(held) if number >= held) {
            record.servers[server].is_uncertain = true;
        }
    }

    /// The outcome of the release of `request`, as soon as it is known.
    pub(super) fn outcome(&self, request: RequestId) -> Option<Outcome> {
        self.records.get(&request)?.outcome()
    }

    /// The outcome of the release of `request`, which has ended. What servers have to acknowledge yet stays recorded.
    pub(super) fn finish(&mut self, request: RequestId) -> Option<Outcome> {
        let record = self.records.get_mut(&request)?;
        let outcome = record.outcome()?;
        record.phase = Phase::Released;
        self.forget_if_settled(request);
        Some(outcome)
    }

    /// Whether `request` held, its release is not confirmed, and this was not reported before.
    pub(super) fn reports(&mut self, request: RequestId) -> bool {
        let record = self.records.get_mut(&request);
        let held = record.filter(|record| matches!(record.phase, Phase::Releases(held) if held != 0));
        held.is_some_and(|record| !std::mem::replace(&mut record.is_reported, true))
    }

    /// Forgets a request that does not wait and was not granted, unless servers have to acknowledge its withdrawal.
    pub(super) fn forget(&mut self, request: RequestId) {
        if let Some(record) = self.records.get_mut(&request) {
            record.phase = Phase::Released;
            self.forget_if_settled(request);
        }
    }

    /// The servers that may have a vote of `request`.
    pub(super) fn open_servers(&self, request: RequestId) -> Vec<usize> {
        let record = self.records.get(&request);
        let open = |record: &Record| (0..self.servers).filter(|at| record.servers[*at].open > 0).collect();
        record.map(open).unwrap_or_default()
    }

    /// How many requests there are records of.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    fn forget_if_settled(&mut self, request: RequestId) {
        let is_settled = |record: &Record| {
            record.phase == Phase::Released && (record.open() == 0 || record.number == UNKNOWN)
        };
        if self.records.get(&request).is_some_and(is_settled) {
            self.records.remove(&request);
        }
    }

    /// Removes expired records when their number has doubled, so that each is looked at a constant number of times.
    fn sweep(&mut self, now: Moment) {
        if self.records.len() < self.sweep_at {
            return;
        }
        self.records.retain(|_, record| record.until > now);
        self.sweep_at = SWEEP.max(2 * self.records.len());
        self.records.shrink_to(self.sweep_at);
    }
}

//! The way of a change: from a server to the leader, and from there as a commit to all servers.

use polylock_zookeeper::simulation::Change;

use super::{Commit, Ensemble, Forwarded, State, Verdict, What};
use crate::simulation::{
    plan::Planted,
    time::MS,
    zookeeper::connection::{Answer, Connection},
};

impl Ensemble {
    /// Sends a message of a client to the leader.
    pub(super) fn forward(&self, state: &mut State, connection: &Connection, what: What) {
        self.send(state, connection.server, connection.number, what);
    }

    fn send(&self, state: &mut State, number: usize, connection: u64, what: What) {
        let member = &state.members[number];
        let session = member.clients.get(&connection).and_then(|served| served.session);
        let (Some(term), joined) = (member.term, member.joined) else { return };
        let forwarded = Forwarded { member: number, term, joined, connection, session, what };
        if member.is_leader {
            return self.lead(state, forwarded);
        }
        let at = self.time.now() + state.random.u64(MS / 10..MS);
        let last = &mut state.members[number].last[0];
        *last = at.max(*last + 1);
        self.at(*last, move |this| this.arrive(&mut this.lock(), forwarded));
    }

    fn arrive(&self, state: &mut State, forwarded: Forwarded) {
        let member = &mut state.members[forwarded.member];
        if member.cut_since.is_some() {
            return member.held.0.push(forwarded);
        }
        // A message on an abandoned connection may arrive late.
        if member.joined == forwarded.joined || state.random.bool() {
            self.lead(state, forwarded);
        }
    }

    /// Delivers the messages that had to wait.
    pub(super) fn deliver_held(&self, state: &mut State, number: usize) {
        let (to_leader, from_leader) = std::mem::take(&mut state.members[number].held);
        for forwarded in to_leader {
            self.arrive(state, forwarded);
        }
        for commit in from_leader {
            self.receive_commit(state, number, commit);
        }
    }

    /// Carries out the messages that have waited for a majority.
    pub(super) fn work_off(&self, state: &mut State) {
        for forwarded in std::mem::take(&mut state.backlog) {
            self.lead(state, forwarded);
        }
    }

    /// Carries out a message at the leader.
    fn lead(&self, state: &mut State, forwarded: Forwarded) {
        let Forwarded { member, term, joined, connection, session, .. } = forwarded;
        if term != state.leader.term || !state.leads() {
            // A leader without followers answers this alone.
            if let (What::Sync(number), true) = (&forwarded.what, state.members[member].is_leader) {
                self.answer(state, member, connection, &Verdict::Reply(*number, Ok(Answer::Done)));
            } else if term == state.leader.term {
                state.backlog.push(forwarded);
            }
            return;
        }
        // The leader proposes in order of arrival: a new connection of a session proves that nothing of an earlier one is still to come.
        self.work_off(state);
        let verdict = match forwarded.what {
            What::Open(open) => {
                let now = state.members[state.leader.member].clock.now();
                let sessions = &mut state.leader.sessions;
                let session = match open.session {
                    Some(session) => sessions.continue_at(session, (member, joined), now).then_some(session),
                    None => Some(sessions.open(open.timeout, (member, joined), now)),
                };
                Verdict::Opened(session, open)
            }
            What::Sync(number) => Verdict::Reply(number, Ok(Answer::Done)),
            What::Change(number, changes, is_transaction) => {
                let is_checked = self.planted != Some(Planted::ZookeeperLateCreate);
                let session = (session.unwrap_or(0), (member, joined));
                let outcome = state.leader.change(session, &changes, is_transaction, is_checked);
                self.timeline.note(format_args!("n{member}"), || {
                    format!("session {} {}: {outcome:?}", session.0, shown(&changes))
                });
                Verdict::Reply(number, outcome)
            }
            What::Close => return self.end_session(state, session.unwrap_or(0)),
            What::Report(touched) => {
                let now = state.members[state.leader.member].clock.now();
                touched.iter().for_each(|session| state.leader.sessions.touch(*session, now));
                return;
            }
        };
        self.publish(state, Some((member, connection, verdict)));
    }

    /// Sends the last transactions to all servers, and a verdict to the one whose client waits for it.
    pub(super) fn publish(&self, state: &mut State, mut verdict: Option<(usize, u64, Verdict)>) {
        for number in 0..state.members.len() {
            let verdict = verdict.take_if(|(to, ..)| *to == number);
            self.send_commit(state, number, verdict.map(|(_, to, verdict)| (to, verdict)), false);
        }
    }

    /// Sends a ping to each follower, which then reports its sessions. A leader that is cut off sends them, too.
    pub(super) fn ping(&self, state: &mut State) {
        if !state.has_active_leader() {
            return;
        }
        let leader = state.leader.member;
        for number in (0..state.members.len()).filter(|number| *number != leader) {
            self.send_commit(state, number, None, true);
        }
    }

    fn send_commit(&self, state: &mut State, number: usize, verdict: Option<(u64, Verdict)>, is_ping: bool) {
        let (end, member) = (state.leader.log.len(), &mut state.members[number]);
        let lag = state.random.u64(MS / 10..member.lag);
        let commit = Commit { joined: member.joined, end, verdict, is_ping };
        member.last[1] = (self.time.now() + lag).max(member.last[1] + 1);
        self.at(member.last[1], move |this| this.receive_commit(&mut this.lock(), number, commit));
    }

    fn receive_commit(&self, state: &mut State, number: usize, commit: Commit) {
        let is_following = state.follows(number);
        let is_cut = number != state.leader.member && state.members[state.leader.member].cut_since.is_some();
        let member = &mut state.members[number];
        if member.joined != commit.joined || !member.is_up {
            return;
        }
        if !is_following || is_cut {
            return member.held.1.push(commit);
        }
        self.apply(state, number, commit.end);
        if let Some((connection, verdict)) = commit.verdict {
            self.answer(state, number, connection, &verdict);
        }
        if commit.is_ping {
            let touched = std::mem::take(&mut state.members[number].touched);
            // No client waits for an answer.
            self.send(state, number, 0, What::Report(touched));
        }
    }

    /// Applies the transactions before `end` at a server.
    pub(super) fn apply(&self, state: &mut State, number: usize, end: usize) {
        let member = &mut state.members[number];
        while member.applied < end {
            let entry = &state.leader.log[member.applied];
            member.applied += 1;
            for (event, path) in member.tree.apply(entry.zxid, &entry.effects) {
                member.notify(event, &path);
            }
            if let Some(session) = entry.ends {
                member.end_session(session);
            }
        }
    }
}

/// Returns changes in a readable form.
fn shown(changes: &[Change]) -> String {
    let change = |change: &Change| match change {
        Change::Exists(path) => format!("checks {path}"),
        Change::Create { path, .. } => format!("creates {path}"),
        Change::Write { path, .. } => format!("writes {path}"),
        Change::Delete(path) => format!("deletes {path}"),
    };
    changes.iter().map(change).collect::<Vec<_>>().join(", ")
}

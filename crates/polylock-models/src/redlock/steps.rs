//! The effect of each step, the possible steps of a state, and the properties.

use super::*;

impl Redlock {
    /// Executes the proposal of the rival at the servers of `mask`. The others can't be reached.
    fn rival(&self, state: &mut State, mask: usize, is_greatest: bool) {
        self.propose(state, RIVAL, is_greatest);
        for at in 0..SERVERS {
            if mask & (1 << at) != 0 {
                self.vote(state, [RIVAL, at, 0], false);
            } else if let Some(VoteMessage { sent: Some(sent), .. }) =
                state.clients[RIVAL].channels[at].votes.pop()
            {
                state.clients[RIVAL].proposals.on_reply(sent, DefiniteReply::Refused);
            }
        }
        self.decide(state, RIVAL);
        if state.clients[RIVAL].stage == Stage::Between {
            self.release(state, RIVAL);
        }
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Propose(is_greatest) => self.propose(state, CLIENT, is_greatest),
            Action::Rival(mask, is_greatest) => self.rival(state, mask, is_greatest),
            Action::RivalReleases => self.release(state, RIVAL),
            Action::RivalLoses => state.clients[RIVAL].stage = Stage::Ended,
            Action::Vote(server, message) => self.vote(state, [CLIENT, server, message], false),
            Action::VoteWithoutReply(server, message) => {
                state.budget.faults -= 1;
                self.vote(state, [CLIENT, server, message], true);
            }
            Action::TimeOut => self.decide(state, CLIENT),
            Action::Withdraw(server) => self.withdraw(state, CLIENT, server, false),
            Action::WithdrawWithoutReply(server) => {
                state.budget.faults -= 1;
                self.withdraw(state, CLIENT, server, true);
            }
            Action::Repeat(server) => self.send_withdrawal(&mut state.clients[CLIENT], CLIENT, server),
            Action::KeepAlive => {
                state.budget.renewals -= 1;
                let client = &mut state.clients[CLIENT];
                client.renewal = Some((Renewals::new(SERVERS), state.now));
                client.absent = [false; SERVERS];
                client.channels.iter_mut().for_each(|channel| channel.extends = true);
            }
            Action::Extend(server) => self.extend(state, CLIENT, server),
            Action::RenewalTimesOut => self.time_out_renewal(&mut state.clients[CLIENT]),
            Action::Release => self.release(state, CLIENT),
            Action::Lose => {
                let client = &mut state.clients[CLIENT];
                (client.stage, client.renewal) = (Stage::Ended, None);
            }
            Action::Restart(server, kind) => {
                state.budget.faults -= 1;
                let other = if let Restart::Copy(other) = kind { other } else { server };
                let data = state.servers[other].data;
                state.servers[server].restart(kind, data, self.bug);
                let client = &mut state.clients[CLIENT];
                let has_removed = client.channels[server].has_removed;
                if let Some(number) = std::mem::take(&mut client.channels[server]).withdrawal {
                    client.proposals.on_no_reply(id(CLIENT), server, number);
                }
                client.channels[server].has_removed = has_removed;
            }
            Action::Tick => {
                state.now += 1;
                state.budget.ticks -= 1;
            }
        }
    }
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |budget| State {
            now: 0,
            budget,
            servers: Default::default(),
            clients: [Client::new(), Client::new()],
            last_token: 0,
            tokens_grow: true,
            has_false_loss: false,
            held_votes_stay: true,
        };
        BUDGETS.map(state).into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let State { now, budget, clients: [client, rival], .. } = state;
        for (at, channel) in client.channels.iter().enumerate() {
            for message in 0..channel.votes.len() {
                actions.push(Action::Vote(at, message));
                if budget.faults > 0 {
                    actions.push(Action::VoteWithoutReply(at, message));
                }
            }
            if channel.withdrawal.is_some() {
                actions.push(Action::Withdraw(at));
                if budget.faults > 0 {
                    actions.push(Action::WithdrawWithoutReply(at));
                }
            } else if client.proposals.withdrawal(id(CLIENT), at).is_some() {
                actions.push(Action::Repeat(at));
            }
            if channel.extends {
                actions.push(Action::Extend(at));
            }
        }
        match client.stage {
            Stage::Idle => actions.extend([true, false].map(Action::Propose)),
            Stage::Proposing => actions.push(Action::TimeOut),
            Stage::Between => {
                if budget.proposals[CLIENT] > 0 {
                    actions.push(Action::Propose(false));
                }
                actions.push(Action::Release);
            }
            Stage::Held if client.believes(*now) => {
                actions.push(Action::Release);
                if budget.renewals > 0 && client.renewal.is_none() {
                    actions.push(Action::KeepAlive);
                }
                if client.renewal.is_some() {
                    actions.push(Action::RenewalTimesOut);
                }
            }
            Stage::Held => actions.push(Action::Lose),
            Stage::Releasing | Stage::Ended => {}
        }
        match rival.stage {
            Stage::Idle if budget.proposals[RIVAL] > 0 => {
                for mask in (1..1 << SERVERS).filter(|mask: &usize| mask.count_ones() >= 2) {
                    actions.extend([true, false].map(|is_greatest| Action::Rival(mask, is_greatest)));
                }
            }
            Stage::Held if rival.believes(*now) => actions.push(Action::RivalReleases),
            Stage::Held => actions.push(Action::RivalLoses),
            _ => {}
        }
        if budget.faults > 0 {
            for server in 0..SERVERS {
                let kinds = [Restart::Empty, Restart::Kept, Restart::ClockAhead, Restart::OldFile];
                let copies = (0..SERVERS).filter(|other| *other != server).map(Restart::Copy);
                actions.extend(kinds.into_iter().chain(copies).map(|kind| Action::Restart(server, kind)));
            }
        }
        if budget.ticks > 0 {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        if !matches!(action, Action::Restart(..)) {
            next.servers.iter_mut().zip(&state.servers).for_each(|(server, old)| server.record(old.data));
        }
        next.servers.iter_mut().for_each(|server| server.expire(next.now));
        next.clients.iter_mut().for_each(|client| client.normalize(&next.servers));
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder at a time", |_, state: &State| {
                let holders = state.clients.iter().filter(|client| client.believes(state.now));
                invariant::holders_are_compatible(holders.map(|_| Mode::Exclusive))
            }),
            Property::always("tokens grow", |_, state: &State| state.tokens_grow),
            Property::always("the client knows each vote", |_, state: &State| {
                state.servers.iter().enumerate().all(|(at, server)| {
                    let is_known = |vote: server::Vote| {
                        state.clients[vote.client].proposals.open_servers(id(vote.client)).contains(&at)
                    };
                    server.vote(state.now).is_none_or(|vote| !vote.is_own || is_known(vote))
                })
            }),
            Property::always("a vote without a request is withdrawn", |_, state: &State| {
                state.servers.iter().enumerate().all(|(at, server)| {
                    let is_withdrawn = |vote: server::Vote| {
                        let client = &state.clients[vote.client];
                        // A hold that is lost is released by its holder, or expires.
                        let is_in_use = matches!(client.stage, Stage::Proposing | Stage::Held)
                            || client.stage == Stage::Ended && client.outcome.is_none();
                        is_in_use || client.proposals.withdrawal(id(vote.client), at).is_some()
                    };
                    server.vote(state.now).is_none_or(|vote| !vote.is_own || is_withdrawn(vote))
                })
            }),
            Property::always("no vote of a file is counted", |_, state: &State| {
                let is_counted = |server: &Server| {
                    server.is_confirmed() && server.vote(state.now).is_some_and(|vote| vote.of_file)
                };
                !state.servers.iter().any(is_counted)
            }),
            Property::always("a held vote stays", |_, state: &State| state.held_votes_stay),
            Property::always("a loss is no error", |_, state: &State| !state.has_false_loss),
            Property::sometimes("both hold in turn", |_, state: &State| {
                state.clients.iter().all(|client| client.has_held)
            }),
            Property::sometimes("a release reports a loss", |_, state: &State| {
                state.clients.iter().any(|client| matches!(client.outcome, Some(Outcome::Lost(_))))
            }),
        ]
    }
}

impl Protocol for Redlock {
    const NAME: &'static str = "Redlock";
    const BOUNDS: &'static str = "3 servers, 2 clients, leases of 1 tick; either 1 proposal each, 1 tick, 1 renewal, and 1 restart with any data or \
         lost reply; or 2 proposals of one client alone";
    type Bug = Bug;
    const TWINS: &'static [(Bug, &'static str)] = &[
        (Bug::NoVoteDelay, "one holder at a time"),
        (Bug::ClockAheadIsTrusted, "one holder at a time"),
        (Bug::OldFileIsTrusted, "one holder at a time"),
        (Bug::CopyIsTrusted, "one holder at a time"),
        (Bug::DeadlineFromReply, "one holder at a time"),
        (Bug::LiveVoteIsWithdrawn, "a held vote stays"),
        (Bug::NumbersRepeat, "tokens grow"),
        (Bug::WithdrawnNumberIsAccepted, "the client knows each vote"),
        (Bug::MissingReplyAcknowledges, "the client knows each vote"),
        (Bug::RestoredVoteIsNotRecorded, "the client knows each vote"),
        (Bug::FailedProposalStays, "a vote without a request is withdrawn"),
        (Bug::LostReleaseIsForgotten, "a loss is no error"),
    ];

    fn new(bug: Option<Bug>) -> Self {
        #[expect(clippy::unwrap_used, reason = "the name is valid")]
        let name = LockName::new("lock").unwrap();
        Self { bug, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;

    #[test]
    fn votes_are_exclusive_and_known() {
        println!("{:#?}", check::<Redlock>());
    }
}

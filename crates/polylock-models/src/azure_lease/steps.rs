//! The effect of each step, the possible steps of a state, and the properties.

use super::*;

impl AzureLease {
    fn apply(&self, state: &mut State, action: Action) {
        let now = state.now;
        match action {
            Action::Claim(index) => Self::claim(state, index),
            Action::Execute(index) => self.execute(state, index),
            Action::Reply(index) => self.on_reply(state, index),
            Action::ExecuteLate(index) => {
                let is_acquired = matches!(state.blob.acquire(index, now), Reply::Acquired(_));
                let client = &mut state.clients[index];
                client.late = None;
                client.is_revoked &= !is_acquired;
            }
            Action::ExecuteLateWrite(index) => {
                if let Some((before, token)) = state.clients[index].late_write.take() {
                    state.blob.write(index, self.condition(before), token, now);
                }
            }
            Action::GiveUp(index) => {
                state.budget.faults -= 1;
                let before = self.last_arrival(now);
                let client = &mut state.clients[index];
                match client.call.take() {
                    Some(Call { operation: Operation::Release, .. }) => {
                        client.is_repeated = true;
                        client.call = Call::new(Operation::Release);
                    }
                    Some(Call { operation, reply, .. }) => {
                        client.stage = Stage::Between;
                        if operation == Operation::Acquire {
                            client.lease.on_no_reply(at(now));
                            client.late = reply.is_none().then_some(before);
                        } else if let (Operation::Write { before, token }, None) = (operation, reply) {
                            client.late_write = Some((before, token));
                        }
                    }
                    None => {}
                }
            }
            Action::SendAgain(index) => {
                state.budget.faults -= 1;
                let before = self.last_arrival(now);
                let client = &mut state.clients[index];
                if let Some(call) = &mut client.call {
                    call.was_resent = true;
                    if call.operation == Operation::Acquire {
                        client.late = Some(before);
                    } else {
                        client.has_released |= state.blob.release(index) == Reply::Done;
                    }
                }
            }
            Action::Renew(index) => state.clients[index].renewal = Some(Renewal { sent: now, reply: None }),
            Action::ExecuteRenewal(index) => {
                let reply = state.blob.renew(index, now);
                if let Some(renewal) = &mut state.clients[index].renewal {
                    renewal.reply = Some(reply);
                }
            }
            Action::RenewalReply(index) => {
                let client = &mut state.clients[index];
                let Some(Renewal { sent, reply }) = client.renewal.take() else { return };
                let sent = if self.has(Bug::DeadlineFromReply) { now } else { sent };
                if reply == Some(Reply::Done) {
                    client.lease.on_grant(ticks(TTL), at(sent));
                    client.held_since = sent;
                } else {
                    client.is_lost = true;
                    self.release(state, index);
                }
            }
            Action::Release(index) => self.release(state, index),
            Action::Lose(index) => {
                state.clients[index].is_lost = true;
                self.release(state, index);
            }
            Action::CleanUp(index) => {
                if !self.has(Bug::CleanUpEndsEarly) || state.clients[index].clean_up > Some(now) {
                    state.blob.release(index);
                }
                let client = &mut state.clients[index];
                client.clean_up = client.clean_up.filter(|until| *until > now);
            }
            Action::Break(is_forced) => {
                state.budget.breaks -= 1;
                let broken = state.blob.lease(now).map(|lease| lease.request);
                state.blob.break_lease(is_forced || self.has(Bug::BreakEndsLease), now);
                state.revoking = broken.filter(|_| is_forced);
                if let Some(index) = state.revoking {
                    state.clients[index].is_broken = true;
                }
            }
            Action::Revoke => {
                if let Some(index) = state.revoking.take() {
                    let has_lease = state.blob.lease(now).is_some_and(|lease| lease.request == index);
                    let client = &mut state.clients[index];
                    client.is_revoked = client.is_broken && !client.has_released && !has_lease;
                }
                if !self.has(Bug::NoRevocation) {
                    state.blob.revoke(now);
                }
            }
            Action::Die(process) => self.die(state, process),
            Action::Tick => state.now += 1,
        }
    }

    /// Returns the tick before which a copy of an acquisition arrives.
    fn last_arrival(&self, now: u8) -> u8 {
        now + if self.has(Bug::VeryLate) { MAX_DELAY + 1 } else { MAX_DELAY }
    }

    fn die(&self, state: &mut State, process: usize) {
        state.budget.faults -= 1;
        let before = self.last_arrival(state.now);
        state.cache[process] = None;
        for index in (0..REQUESTS).filter(|index| PROCESS[*index] == process) {
            let client = &mut state.clients[index];
            match client.call {
                Some(Call { operation: Operation::Acquire, reply: None, .. }) => client.late = Some(before),
                Some(Call { operation: Operation::Write { before, token }, reply: None, .. }) => {
                    client.late_write = Some((before, token));
                }
                _ => {}
            }
            (client.stage, client.clean_up) = (Stage::Dead, None);
        }
    }

    fn steps(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let (now, client) = (state.now, &state.clients[index]);
        match client.stage {
            // The requests of one process are alike, so they begin in order.
            Stage::Idle
                if index < state.budget.requests && (index != 2 || state.clients[0].stage != Stage::Idle) =>
            {
                actions.push(Action::Claim(index));
            }
            Stage::Between => actions.extend([Action::Claim(index), Action::Release(index)]),
            Stage::Held if client.believes(now) || client.is_broken => {
                actions.push(Action::Release(index));
                if now > client.held_since && client.renewal.is_none() {
                    actions.push(Action::Renew(index));
                }
            }
            Stage::Held => actions.push(Action::Lose(index)),
            _ => {}
        }
        if let Some(call) = client.call {
            actions.push(if call.reply.is_none() { Action::Execute(index) } else { Action::Reply(index) });
            if state.budget.faults > 0 {
                actions.push(Action::GiveUp(index));
                if matches!(call.operation, Operation::Acquire | Operation::Release)
                    && (call.reply, call.was_resent) == (None, false)
                {
                    actions.push(Action::SendAgain(index));
                }
            }
        }
        match client.renewal {
            Some(Renewal { reply: None, .. }) => actions.push(Action::ExecuteRenewal(index)),
            Some(_) if client.believes(now) || client.is_broken => actions.push(Action::RenewalReply(index)),
            _ => {}
        }
        if client.late.is_some() {
            actions.push(Action::ExecuteLate(index));
        }
        if client.late_write.is_some() {
            actions.push(Action::ExecuteLateWrite(index));
        }
        if client.clean_up.is_some() {
            actions.push(Action::CleanUp(index));
        }
    }
}

impl Model for AzureLease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |budget| State {
            now: 0,
            budget,
            blob: Blob::default(),
            clients: Default::default(),
            cache: [None; 2],
            revoking: None,
            last_token: 0,
            tokens_grow: true,
            has_false_loss: false,
            has_false_release: false,
        };
        BUDGETS.map(state).into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for index in 0..REQUESTS {
            self.steps(state, index, actions);
        }
        if state.budget.faults > 0 {
            let is_live = |process: usize| {
                let live = |index: &usize| !matches!(state.clients[*index].stage, Stage::Idle | Stage::Ended);
                (0..REQUESTS).filter(|index| PROCESS[*index] == process).any(|index| live(&index))
            };
            actions.extend((0..2).filter(|process| is_live(*process)).map(Action::Die));
        }
        if state.budget.breaks > 0 && state.blob.lease(state.now).is_some() {
            actions.extend([true, false].map(Action::Break));
        }
        if state.revoking.is_some() {
            actions.push(Action::Revoke);
        }
        if state.now < END {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        next.normalize();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder at a time", |_, state: &State| {
                let holders = state.clients.iter().filter(|client| client.believes(state.now));
                invariant::holders_are_compatible(holders.map(|_| Mode::Exclusive))
            }),
            Property::always("tokens grow", |_, state: &State| state.tokens_grow),
            Property::always("an ended request has no lease", |_, state: &State| {
                let is_left = |client: &Client| client.stage == Stage::Ended && client.clean_up.is_none();
                state.blob.lease(state.now).is_none_or(|lease| !is_left(&state.clients[lease.request]))
            }),
            Property::always("a loss is no error", |_, state: &State| !state.has_false_loss),
            Property::always("a break by force is a loss", |_, state: &State| !state.has_false_release),
            Property::sometimes("all hold in turn", |_, state: &State| {
                state.clients.iter().all(|client| client.has_held)
            }),
            Property::sometimes("a hold is lost", |_, state: &State| {
                state.clients.iter().any(|client| client.is_lost)
            }),
        ]
    }
}

impl Protocol for AzureLease {
    const NAME: &'static str = "Azure lease";
    const BOUNDS: &'static str =
        "leases of 2 ticks, 2 ticks, 1 fault; either 3 requests in 2 processes, or 2 and 1 break";
    type Bug = Bug;
    const TWINS: &'static [(Bug, &'static str)] = &[
        (Bug::DeadlineFromReply, "one holder at a time"),
        (Bug::BreakEndsLease, "one holder at a time"),
        (Bug::StaleToken, "tokens grow"),
        (Bug::NoCondition, "tokens grow"),
        (Bug::NoCleanUp, "an ended request has no lease"),
        (Bug::CleanUpEndsEarly, "an ended request has no lease"),
        (Bug::VeryLate, "an ended request has no lease"),
        (Bug::RefusalForgetsCopy, "an ended request has no lease"),
        (Bug::SuccessForgetsCopy, "an ended request has no lease"),
        (Bug::SecondReplyCounts, "a loss is no error"),
        (Bug::NoRevocation, "a break by force is a loss"),
    ];

    fn new(bug: Option<Bug>) -> Self {
        Self { bug }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;

    #[test]
    fn a_lease_has_a_holder_or_ends() {
        println!("{:#?}", check::<AzureLease>());
    }
}

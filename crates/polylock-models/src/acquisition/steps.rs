//! The effect of each step, the possible steps of a state, and the properties.

use super::*;

impl Core {
    fn apply(&self, state: &mut State, action: Action) {
        let now = state.now;
        match action {
            Action::Acquire { request, queues, driven } => {
                let acquisition = &mut state.acquisitions[request];
                acquisition.queues = queues;
                if driven {
                    acquisition.stage = Stage::Driven;
                    (acquisition.sent, acquisition.claims[CALLER]) = (now, Some(Message::Sent));
                    acquisition.may_have_entry = true;
                } else {
                    acquisition.claim(now);
                }
            }
            Action::Claim(request, connection) => {
                let acquisition = &mut state.acquisitions[request];
                let reply = state.store.claim(request, acquisition.queues, now);
                acquisition.claims[connection] = Some(Message::Replied(reply));
            }
            Action::LateClaim(request) => {
                let acquisition = &mut state.acquisitions[request];
                acquisition.late -= 1;
                state.store.claim(request, acquisition.queues, now);
            }
            Action::Reply(request, connection) => {
                let acquisition = &mut state.acquisitions[request];
                let Some(Message::Replied(reply)) = acquisition.claims[connection].take() else { return };
                match acquisition.stage {
                    Stage::Driven => self.on_driven_reply(state, request, reply),
                    Stage::Claiming => self.on_reply(acquisition, reply, now),
                    _ => acquisition.roll_back(self.bug),
                }
            }
            Action::TakeOver(request) => {
                state.faults += 1;
                let acquisition = &mut state.acquisitions[request];
                acquisition.abandon(CALLER);
                acquisition.is_first_unknown = true;
                acquisition.claim(now);
            }
            Action::Drop(request) => {
                let acquisition = &mut state.acquisitions[request];
                match acquisition.stage {
                    Stage::Driven => acquisition.abandon(CALLER),
                    Stage::Delivered if self.has(Bug::DroppedResultIsKept) => {
                        acquisition.stage = Stage::Ended;
                        return;
                    }
                    _ => {}
                }
                acquisition.roll_back(self.bug);
            }
            Action::Fail(request) => {
                state.faults += 1;
                let acquisition = &mut state.acquisitions[request];
                match acquisition.stage {
                    Stage::Driven => {
                        acquisition.abandon(CALLER);
                        acquisition.is_first_unknown = true;
                        acquisition.claim(now);
                    }
                    Stage::Claiming if acquisition.queues => {
                        acquisition.abandon(THREAD);
                        acquisition.claim(now);
                    }
                    Stage::Claiming | Stage::RollingBack => {
                        acquisition.abandon(THREAD);
                        acquisition.roll_back(self.bug);
                    }
                    _ => {
                        acquisition.release = Some(Message::Sent);
                        acquisition.attempts += 1;
                    }
                }
            }
            Action::FailAtLast(request) => {
                state.faults += 1;
                let acquisition = &mut state.acquisitions[request];
                acquisition.abandon(THREAD);
                acquisition.roll_back(self.bug);
            }
            Action::Notify(request) => {
                state.store.notified[request] = false;
                let acquisition = &mut state.acquisitions[request];
                acquisition.is_notified |= acquisition.receives_notifications(self.bug);
            }
            Action::ClaimAgain(request) => {
                let acquisition = &mut state.acquisitions[request];
                acquisition.is_notified = false;
                acquisition.claim(now);
            }
            Action::Receive(request) => state.begin_hold(request),
            Action::PassOn(request) => state.acquisitions[request].release(),
            Action::Release(request) => {
                let acquisition = &mut state.acquisitions[request];
                acquisition.is_holder = self.has(Bug::HeldUntilAcknowledged);
                acquisition.release();
            }
            Action::Lose(request) => {
                let acquisition = &mut state.acquisitions[request];
                (acquisition.is_holder, acquisition.is_lost) = (false, true);
                acquisition.stage = Stage::Ended;
            }
            Action::ExecuteRelease(request) => {
                let acquisition = &mut state.acquisitions[request];
                let refuses = acquisition.may_be_late && !self.has(Bug::ReleaseLeavesNoNote);
                let found = state.store.release(request, refuses);
                acquisition.release = Some(Message::Replied(found));
            }
            Action::ReleaseReply(request) => {
                let acquisition = &mut state.acquisitions[request];
                let Some(Message::Replied(found)) = acquisition.release.take() else { return };
                let is_repeated = acquisition.attempts > 1 && !self.has(Bug::RepeatedReleaseReportsLoss);
                if acquisition.grant.is_some() && !found && !is_repeated {
                    state.reports_loss = true;
                    state.has_false_loss |= !state.store.expired[request];
                }
                (acquisition.stage, acquisition.is_holder) = (Stage::Ended, false);
            }
            Action::Tick => state.now += 1,
        }
    }

    fn actions_of(&self, state: &State, request: usize, actions: &mut Vec<Action>) {
        let acquisition = &state.acquisitions[request];
        let may_fail = state.faults < FAULTS;
        for (connection, claim) in acquisition.claims.iter().enumerate() {
            match claim {
                Some(Message::Sent) => actions.push(Action::Claim(request, connection)),
                Some(Message::Replied(_)) => actions.push(Action::Reply(request, connection)),
                None => {}
            }
        }
        match acquisition.release {
            Some(Message::Sent) => actions.push(Action::ExecuteRelease(request)),
            Some(Message::Replied(_)) => actions.push(Action::ReleaseReply(request)),
            None => {}
        }
        if acquisition.late > 0 {
            actions.push(Action::LateClaim(request));
        }
        if state.store.notified[request] {
            actions.push(Action::Notify(request));
        }
        match acquisition.stage {
            Stage::Idle => {
                // Requests are alike, so they begin in order.
                if request == 0 || state.acquisitions[request - 1].stage != Stage::Idle {
                    for (queues, driven) in [(true, true), (true, false), (false, true), (false, false)] {
                        actions.push(Action::Acquire { request, queues, driven });
                    }
                }
            }
            Stage::Driven => {
                actions.push(Action::Drop(request));
                if may_fail {
                    actions.extend([Action::TakeOver(request), Action::Fail(request)]);
                }
            }
            Stage::Claiming => {
                actions.push(Action::Drop(request));
                if may_fail {
                    actions.push(Action::Fail(request));
                    if acquisition.queues {
                        actions.push(Action::FailAtLast(request));
                    }
                }
            }
            Stage::Waiting => {
                actions.push(Action::Drop(request));
                if acquisition.is_notified || state.now > acquisition.sent {
                    actions.push(Action::ClaimAgain(request));
                }
            }
            Stage::Delivered => {
                actions.extend([Action::Receive(request), Action::PassOn(request), Action::Drop(request)]);
            }
            Stage::Held => actions.push(match acquisition.holds(state.now) {
                true => Action::Release(request),
                false => Action::Lose(request),
            }),
            Stage::RollingBack if may_fail => actions.push(Action::Fail(request)),
            Stage::Releasing => {
                if may_fail {
                    actions.push(Action::Fail(request));
                }
                if self.has(Bug::ReceivedAfterPassingOn)
                    && acquisition.grant.is_some()
                    && !acquisition.is_holder
                {
                    actions.push(Action::Receive(request));
                }
            }
            Stage::RollingBack | Stage::Ended => {}
        }
    }
}

impl Model for Core {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { tokens_grow: true, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for request in 0..REQUESTS {
            self.actions_of(state, request, actions);
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
                let holders = state.acquisitions.iter().filter(|acquisition| acquisition.holds(state.now));
                invariant::holders_are_compatible(holders.map(|_| Mode::Exclusive))
            }),
            Property::always("tokens grow", |_, state: &State| state.tokens_grow),
            Property::always("an ended request has no entry", |_, state: &State| {
                let is_left = |entry: &Entry| {
                    let acquisition = &state.acquisitions[entry.request];
                    acquisition.stage == Stage::Ended && !acquisition.is_lost
                };
                !state.store.entries.iter().any(is_left)
            }),
            Property::always("every acquisition ends", |model, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let is_undecided = |acquisition: &Acquisition| acquisition.stage != Stage::Ended;
                // A lost hold may last longer than the model.
                let is_lost = |entry: &Entry| state.acquisitions[entry.request].is_lost;
                state.store.entries.iter().any(is_lost)
                    || actions.into_iter().any(|action| !matches!(action, Action::Drop(_)))
                    || !state.acquisitions.iter().any(is_undecided)
            }),
            Property::always("a loss is no error", |_, state: &State| !state.has_false_loss),
            Property::sometimes("all hold in turn", |_, state: &State| {
                state.acquisitions.iter().all(|acquisition| acquisition.has_held)
            }),
            Property::sometimes("a release reports a loss", |_, state: &State| state.reports_loss),
        ]
    }
}

impl Protocol for Core {
    const NAME: &'static str = "core";
    const BOUNDS: &'static str = "2 requests, 2 unknown outcomes, leases of 2 ticks, 2 ticks";
    type Bug = Bug;
    const TWINS: &'static [(Bug, &'static str)] = &[
        (Bug::BusyTryLeavesFirstClaim, "an ended request has no entry"),
        (Bug::RollbackOvertakesClaim, "an ended request has no entry"),
        (Bug::ReleaseLeavesNoNote, "an ended request has no entry"),
        (Bug::DroppedResultIsKept, "an ended request has no entry"),
        (Bug::DeadlineFromReply, "one holder at a time"),
        (Bug::ReceivedAfterPassingOn, "one holder at a time"),
        (Bug::HeldUntilAcknowledged, "one holder at a time"),
        (Bug::RegisteredByReply, "every acquisition ends"),
        (Bug::RepeatedReleaseReportsLoss, "a loss is no error"),
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
    fn an_acquisition_is_safe_and_ends() {
        println!("{:#?}", check::<Core>());
    }
}

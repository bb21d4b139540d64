//! The effect of each step, the possible steps of a state, and the properties.

use super::*;

impl<F: Flavor> Handover<F> {
    fn apply(&self, state: &mut State, action: Action) {
        let now = state.now;
        match action {
            Action::Acquire(request) | Action::ClaimAgain(request) => self.send_claim(state, request),
            Action::Execute(operation) => self.execute(state, operation),
            Action::Commit => {
                if let Some((operation, read)) = state.transaction.take() {
                    self.commit(state, operation, read);
                }
            }
            Action::ClaimReply(request) => self.on_claim_reply(state, request),
            Action::Retry(request) => {
                self.abandon_claim(state, request);
                self.send_claim(state, request);
            }
            Action::GiveUp(request) => {
                self.abandon_claim(state, request);
                self.release(state, request);
            }
            Action::Notify(request, number) => {
                let notification = state.server.notifications[request].remove(number);
                let client = &mut state.clients[request];
                if matches!(client.stage, Stage::Claiming | Stage::Waiting) {
                    client.kept = Some(notification);
                }
                if client.stage == Stage::Waiting {
                    self.on_wake(state, request);
                }
            }
            Action::LoseNotification(request) => {
                state.faults += 1;
                state.server.notifications[request].remove(0);
            }
            Action::TimeOut(request) => {
                state.faults += 1;
                self.release(state, request);
            }
            Action::Release(request) => self.release(state, request),
            Action::KeepAlive(request) => {
                let client = &mut state.clients[request];
                client.keep_alive = Some(KeepAlive { sent: now, outcome: None });
                client.kept_at = now;
            }
            Action::ExecuteKeepAlive(request) => {
                let outcome = state.server.keep_alive(request, now);
                if let Some(keep_alive) = &mut state.clients[request].keep_alive {
                    keep_alive.outcome = Some(outcome);
                }
            }
            Action::KeepAliveReply(request) => self.on_keep_alive_reply(state, request),
            Action::LoseKeepAlive(request) => {
                state.faults += 1;
                state.clients[request].keep_alive = None;
            }
            Action::Lose(request) => {
                let client = &mut state.clients[request];
                (client.stage, client.is_lost) = (Stage::Ended, true);
            }
            Action::RepeatRelease(request) => state.clients[request].releases = true,
            Action::Die(process) => self.die(state, process),
            Action::Disconnect(process) => state.server.is_connected[process] = false,
            Action::Tick => state.now += 1,
        }
    }

    /// Adds the steps that follow from what was begun, without faults and new requests, except the passage of time.
    fn calm_steps(&self, state: &State, request: usize, actions: &mut Vec<Action>) {
        let (now, client) = (state.now, &state.clients[request]);
        if state.transaction.is_none() {
            if matches!(client.claim, Some(Message::Sent(_))) {
                actions.push(Action::Execute(Operation::Claim(request)));
            }
            if client.late.is_some() {
                actions.push(Action::Execute(Operation::LateClaim(request)));
            }
            if client.releases {
                actions.push(Action::Execute(Operation::Release(request)));
            }
        }
        if matches!(client.claim, Some(Message::Replied(_))) {
            actions.push(Action::ClaimReply(request));
        }
        for number in 0..state.server.notifications[request].len() {
            actions.push(Action::Notify(request, number));
        }
        match client.keep_alive {
            Some(KeepAlive { outcome: None, .. }) => actions.push(Action::ExecuteKeepAlive(request)),
            Some(_) => actions.push(Action::KeepAliveReply(request)),
            None if client.waits() && now > client.kept_at => {
                actions.push(Action::KeepAlive(request));
            }
            None => {}
        }
        match client.stage {
            Stage::Waiting => {
                let is_first = PROCESS[request] == 0 || state.local.first() == Some(&request);
                if now > client.sent && is_first {
                    actions.push(Action::ClaimAgain(request));
                }
            }
            Stage::Held if client.believes(now) => actions.push(Action::Release(request)),
            Stage::Held => actions.push(Action::Lose(request)),
            Stage::Repeating if !client.releases && now >= client.late_until => {
                actions.push(Action::RepeatRelease(request));
            }
            _ => {}
        }
    }

    fn faults(&self, state: &State, request: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[request];
        if client.claim.is_some() && client.late.is_none() {
            actions.extend([Action::Retry(request), Action::GiveUp(request)]);
        }
        if !state.server.notifications[request].is_empty() {
            actions.push(Action::LoseNotification(request));
        }
        if client.stage == Stage::Waiting {
            actions.push(Action::TimeOut(request));
        }
        if client.keep_alive.is_some() {
            actions.push(Action::LoseKeepAlive(request));
        }
    }

    /// Returns true if every live request ends after no more faults, within a time.
    fn becomes_free(&self, state: &State) -> bool {
        let mut state = state.clone();
        let end = state.now + CALM;
        let mut actions = Vec::new();
        while state.now < end {
            actions.clear();
            if state.transaction.is_some() {
                actions.push(Action::Commit);
            }
            for request in 0..CLIENTS {
                self.calm_steps(&state, request, &mut actions);
            }
            // A step that waits for another one comes later.
            let is_patient = |action: &&Action| matches!(action, Action::ClaimAgain(_));
            let next = actions.iter().find(|action| !is_patient(action)).or(actions.first());
            self.apply(&mut state, next.copied().unwrap_or(Action::Tick));
            if state.clients.iter().all(Client::has_ended) {
                return true;
            }
        }
        false
    }
}

impl<F: Flavor> Model for Handover<F> {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            faults: 0,
            server: Server::new(),
            clients: Default::default(),
            local: Vec::new(),
            transaction: None,
            last_tokens: [0; 2],
            tokens_grow: true,
            has_false_loss: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for request in 0..CLIENTS {
            self.calm_steps(state, request, actions);
            match state.clients[request].stage {
                // The requests of one process are alike, so they begin in order.
                Stage::Idle if state.now == 0 && (request < 2 || state.clients[1].stage != Stage::Idle) => {
                    actions.push(Action::Acquire(request));
                }
                _ => {}
            }
            if state.faults < F::FAULTS {
                self.faults(state, request, actions);
            }
        }
        for process in 0..2 {
            let of = |request: &usize| PROCESS[*request] == process;
            let stages = || (0..CLIENTS).filter(of).map(|request| state.clients[request].stage);
            if state.faults < F::FAULTS && stages().any(|stage| matches!(stage, Stage::Waiting | Stage::Held))
            {
                actions.push(Action::Die(process));
            }
            if state.server.is_connected[process] && stages().any(|stage| stage == Stage::Dead) {
                actions.push(Action::Disconnect(process));
            }
        }
        if state.transaction.is_some() {
            actions.push(Action::Commit);
        }
        if state.now < F::END {
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
                are_compatible((0..CLIENTS).filter(|request| state.clients[*request].believes(state.now)))
            }),
            Property::always("tokens grow", |_, state: &State| state.tokens_grow && state.server.tokens_grow),
            Property::always("first come, first served", |_, state: &State| state.server.is_in_order),
            Property::always("an ended request has no entry", |_, state: &State| {
                let is_left = |client: &Client| client.stage == Stage::Ended && !client.is_lost;
                !state.server.entries.iter().any(|entry| is_left(&state.clients[entry.request]))
            }),
            Property::always("a loss is no error", |_, state: &State| !state.has_false_loss),
            Property::always("every waiter gets the lock", |model, state: &State| model.becomes_free(state)),
            Property::sometimes("all hold in turn", |_, state: &State| {
                state.clients.iter().all(|client| client.has_held)
            }),
            Property::sometimes("a hold is lost", |_, state: &State| {
                state.clients.iter().any(|client| client.is_lost)
            }),
        ]
    }
}

impl<F: Flavor> Protocol for Handover<F> {
    const NAME: &'static str = F::NAME;
    const BOUNDS: &'static str = F::BOUNDS;
    type Bug = Bug;
    const TWINS: &'static [(Bug, &'static str)] = F::TWINS;

    fn new(bug: Option<Bug>) -> Self {
        Self { kind: Kind { has_transactions: F::HAS_TRANSACTIONS, bug }, flavor: PhantomData }
    }
}

//! Carries one schedule out: makes the four processes act, delivers the withheld message, and records everything.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use polylock_core::sync::lock;
use tokio::sync::watch;

use super::{
    acts::{Act, Due, ROLES, Role, Step},
    check::may_vanish_by,
    history::{Event, History},
    message::{Action, Outcome, Way},
    planted::Plant,
    relay::{Recorded, Withheld, name},
    script::{Copies, SHORTEST, Script},
    site::Site,
};
use crate::clock::{now, pause};

/// How far a schedule has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    step: usize,
    next_holds: bool,
    has_ended: bool,
}

/// A schedule that is carried out.
struct Conductor<'s> {
    site: &'s Site,
    script: &'s Script,
    lane: usize,
    planted: Option<Plant>,
    history: Mutex<History>,
    progress: watch::Sender<Progress>,
    /// The last handle.
    handle: Mutex<Option<String>>,
    /// The token of the holder that was read last.
    target: Mutex<Option<u64>>,
}

/// Carries the schedule out on this connection of each process, and returns its history.
pub async fn conduct(site: &Arc<Site>, script: &Script, lane: usize, planted: Option<Plant>) -> History {
    ROLES.iter().for_each(|role| site.relays(*role).watch(script.number));
    let conductor = Conductor {
        site,
        script,
        lane,
        planted,
        history: Mutex::default(),
        progress: watch::Sender::default(),
        handle: Mutex::default(),
        target: Mutex::default(),
    };
    tokio::join!(conductor.act(), conductor.deliver());
    conductor.finish().await;
    ROLES.iter().for_each(|role| site.relays(*role).forget(script.number));
    conductor.history.into_inner().unwrap_or_default()
}

impl Conductor<'_> {
    fn name(&self) -> String {
        name(self.script.number)
    }

    fn guard(&self, role: Role) -> String {
        let letter = match role {
            Role::Holder => 'h',
            Role::Adopter => 'a',
            Role::Breaker => 'z',
            Role::Next => 'n',
        };
        format!("{letter}{}", self.script.number)
    }

    /// Carries an operation out, and records it.
    async fn call(&self, role: Role, action: Action) -> Option<Outcome> {
        let reply = self.site.remote(role).call(self.lane, action.clone()).await?;
        let (action, reply) = match self.planted {
            Some(plant) => plant.changed(action, reply),
            None => (action, reply),
        };
        let outcome = reply.outcome.clone();
        lock(&self.history).events.push(Event { role, action, reply });
        Some(outcome)
    }

    /// Carries an operation out that the check does not see.
    async fn hidden(&self, role: Role, action: Action) -> Option<Outcome> {
        self.site.remote(role).call(self.lane, action).await.map(|reply| reply.outcome)
    }

    /// Carries out all steps, and those of the next holder when it begins.
    async fn act(&self) {
        let (begin, begun) = tokio::sync::oneshot::channel::<()>();
        let next = async {
            if begun.await.is_ok() {
                let first = self.script.steps.len();
                for (index, step) in self.script.next.iter().enumerate() {
                    self.step(first + index, step).await;
                }
            }
        };
        let others = async {
            let mut begin = Some(begin);
            for (index, step) in self.script.steps.iter().enumerate() {
                self.progress.send_modify(|progress| progress.step = index);
                if step.act == Act::Begin {
                    begin.take().and_then(|begin| begin.send(()).ok());
                }
                self.step(index, step).await;
            }
            self.progress.send_modify(|progress| progress.step = usize::MAX);
        };
        tokio::join!(next, others);
        self.progress.send_modify(|progress| progress.has_ended = true);
    }

    async fn step(&self, index: usize, step: &Step) {
        pause(step.after).await;
        if step.act == Act::Begin {
            // The next holder has begun, and its messages are those of its own steps.
            return;
        }
        let (relays, number) = (self.site.relays(step.role), self.script.number);
        relays.claims(number, matches!(step.act, Act::Acquire { .. }));
        if index == self.script.trapped {
            relays.set(number, self.script.trap);
        }
        let guard = self.guard(step.role);
        let action = match step.act {
            Act::Begin => return,
            Act::Rest(time) => return pause(time).await,
            Act::Acquire { ttl, shared, wait } => {
                Action::Acquire { name: self.name(), owner: guard.clone(), shared, ttl, wait, guard }
            }
            Act::Handle => Action::Handle { guard },
            Act::IntoHandle => Action::IntoHandle { guard },
            Act::Adopt { ttl } => {
                let Some(handle) = lock(&self.handle).clone() else { return };
                Action::Adopt { handle, ttl, guard }
            }
            Act::Downgrade => Action::Downgrade { guard },
            Act::Upgrade => Action::Upgrade { guard, wait: Duration::from_millis(300) },
            Act::End(way) => Action::End { guard, way },
            Act::Look => Action::Look { name: self.name() },
            Act::Break { force } => {
                let Some(token) = *lock(&self.target) else { return };
                let reason = format!("b{number}.{index}");
                Action::Break { name: self.name(), token, force, reason }
            }
        };
        let outcome = self.call(step.role, action).await;
        if index == self.script.trapped {
            relays.hurry(number);
        }
        match &outcome {
            Some(Outcome::Handle { text, .. }) => *lock(&self.handle) = Some(text.clone()),
            Some(Outcome::Shown(entries)) => {
                *lock(&self.target) = entries.iter().find_map(|entry| entry.token);
            }
            Some(Outcome::Held { .. }) if step.role == Role::Next => {
                self.progress.send_modify(|progress| progress.next_holds = true);
            }
            _ => {}
        }
        self.plant(step, outcome.as_ref()).await;
    }

    /// Does what the planted bug does after this step.
    async fn plant(&self, step: &Step, outcome: Option<&Outcome>) {
        match (self.planted, step.act, outcome) {
            (Some(Plant::HiddenBreak), Act::Acquire { .. }, Some(Outcome::Held { token, .. })) => {
                let reason = "hidden".to_owned();
                let action = Action::Break { name: self.name(), token: *token, force: true, reason };
                self.hidden(Role::Breaker, action).await;
            }
            (Some(Plant::HiddenPark), _, Some(Outcome::Handle { text, .. })) => {
                let guard = format!("x{}", self.script.number);
                let adopt = Action::Adopt { handle: text.clone(), ttl: None, guard: guard.clone() };
                self.hidden(Role::Breaker, adopt).await;
                let way = Way::After(Duration::from_millis(200));
                self.hidden(Role::Breaker, Action::End { guard, way }).await;
                self.call(Role::Breaker, Action::Look { name: self.name() }).await;
            }
            _ => {}
        }
    }

    /// Waits until a message was withheld, and delivers it when it is due.
    async fn deliver(&self) {
        let step = self.script.steps.iter().chain(&self.script.next).nth(self.script.trapped);
        let role = step.map_or(Role::Holder, |step| step.role);
        let mut progress = self.progress.subscribe();
        let mut withheld: Vec<Withheld> = Vec::new();
        loop {
            withheld.extend(self.site.relays(role).withheld(self.script.number));
            let state = *progress.borrow_and_update();
            let first = withheld.first().map(|message| message.at);
            if first.is_some_and(|at| self.is_due(now().since(at), state))
                || (first.is_none() && state.has_ended)
            {
                break;
            }
            tokio::select! {
                changed = progress.changed() => if changed.is_err() { break },
                () = pause(Duration::from_millis(10)) => {}
            }
        }
        self.site.relays(role).disarm(self.script.number);
        withheld.extend(self.site.relays(role).withheld(self.script.number));
        if withheld.is_empty() {
            return;
        }
        let copies = self.site.relays(role).recorded(self.script.number);
        let copies: Vec<Recorded> = copies.into_iter().filter(|it| it.is_withheld).collect();
        if self.script.copies == Copies::Before {
            self.send(&copies).await;
        }
        if self.script.number.is_multiple_of(2) {
            withheld.reverse();
        }
        for message in withheld {
            let at = message.at.as_nanos();
            let delivered = message.deliver().await.as_nanos();
            lock(&self.history).deliveries.push((at, delivered));
        }
        if self.script.copies == Copies::After {
            self.send(&copies).await;
        }
    }

    fn is_due(&self, time: Duration, progress: Progress) -> bool {
        let is_time = time >= self.script.withheld_for;
        time >= SHORTEST
            && match self.script.due {
                Due::Time => is_time,
                Due::Step(step) => is_time || progress.step >= step,
                Due::NextHolds => is_time || progress.next_holds || progress.has_ended,
                Due::End => is_time || progress.has_ended,
            }
    }

    /// Delivers copies of these messages, in this order.
    async fn send(&self, messages: &[Recorded]) {
        for message in messages {
            if self.site.servers.upstreams[message.server].send_copy(&message.bytes).await {
                lock(&self.history).copies.push(now().as_nanos());
            }
        }
    }

    /// Delivers the copies that come last, and looks at what is left.
    async fn finish(&self) {
        for role in [Role::Holder, Role::Adopter, Role::Next] {
            self.call(role, Action::End { guard: self.guard(role), way: Way::Drop }).await;
        }
        if self.script.copies.are_of_all() {
            let all = ROLES.iter().flat_map(|role| self.site.relays(*role).recorded(self.script.number));
            // After its plain release, a copy of a claim that was answered is not refused: the client knows of no other copy.
            let mut all: Vec<Recorded> = all.filter(|it| !it.is_claim || !it.is_answered).collect();
            if self.script.copies == Copies::Reversed {
                all.reverse();
            } else {
                Rng::with_seed(u64::from(self.script.number)).shuffle(&mut all);
            }
            self.send(&all).await;
        }
        if self.planted == Some(Plant::HiddenClaim) {
            let (guard, owner) = (format!("x{}", self.script.number), self.guard(Role::Holder));
            let (name, ttl, wait) = (
                self.name(),
                self.site.can.ttl.is_some().then_some(Duration::from_secs(30)),
                Some(Duration::from_secs(3)),
            );
            self.hidden(Role::Breaker, Action::Acquire { name, owner, shared: false, ttl, wait, guard })
                .await;
        }
        self.look_until_free().await;
        self.acquire_last().await;
        for role in ROLES {
            let guard = self.guard(role);
            if let Some(Outcome::Log(log)) = self.hidden(role, Action::Log { guard: guard.clone() }).await {
                lock(&self.history).logs.insert(guard, log);
            }
        }
    }

    /// Reads the lock until it is free, or its entries may stay.
    async fn look_until_free(&self) {
        loop {
            let Some(Outcome::Shown(entries)) =
                self.call(Role::Breaker, Action::Look { name: self.name() }).await
            else {
                return;
            };
            let at = now().as_nanos();
            let history = lock(&self.history).clone();
            let vanish = entries.iter().map(|entry| may_vanish_by(&history, self.site.bounds, &entry.owner));
            let is_vanishing =
                |until: Option<u64>| until.is_some_and(|until| (at..u64::MAX).contains(&until));
            if !vanish.into_iter().any(is_vanishing) {
                return;
            }
            pause(Duration::from_millis(100)).await;
        }
    }

    /// Acquires the lock once more if it is free.
    async fn acquire_last(&self) {
        let is_left = lock(&self.history).events.iter().rev().find_map(|event| match &event.reply.outcome {
            Outcome::Shown(entries) => Some(!entries.is_empty()),
            _ => None,
        });
        if is_left != Some(false) {
            return;
        }
        let (guard, name) = (self.guard(Role::Breaker), self.name());
        let acquire = Action::Acquire {
            name,
            owner: guard.clone(),
            shared: false,
            ttl: None,
            wait: Some(Duration::from_secs(20)),
            guard: guard.clone(),
        };
        self.call(Role::Breaker, acquire).await;
        self.call(Role::Breaker, Action::End { guard, way: Way::Release }).await;
    }
}

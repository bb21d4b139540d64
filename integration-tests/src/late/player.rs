//! One of the four processes: carries out the operations of the coordinator, many at a time, each on the connection of its schedule.

use std::{
    collections::HashMap,
    io::{self, BufRead, Write},
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock::{Error, Guard, GuardEvent, Locks, LostReason, OwnerId, Result};
use polylock_core::{FencingToken, Mode, Moment, sync::lock};
use tokio::sync::OnceCell;

use super::message::{Action, Command, Log, Loss, Outcome, Reply, Shown, Way, mode};
use crate::clock::now;

/// Reads commands from standard input, and writes their replies to standard output, until the input ends.
///
/// # Errors
/// The errors of the input.
pub async fn play(url: String, lanes: usize) -> io::Result<()> {
    let player = Arc::new(Player {
        url,
        lanes: (0..lanes).map(|_| OnceCell::new()).collect(),
        held: Mutex::default(),
    });
    let (sender, mut commands) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let commands = io::stdin().lock().lines().map_while(io::Result::ok);
        for command in commands.map_while(|line| serde_json::from_str::<Command>(&line).ok()) {
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    while let Some(command) = commands.recv().await {
        let player = player.clone();
        tokio::spawn(async move {
            if let Some(lane) = player.lanes.get(command.lane) {
                // An error is that of the operation.
                lane.get_or_try_init(|| Locks::connect(&player.url)).await.ok();
            }
            let invoked = now().as_nanos();
            let outcome = player.carry_out(&command).await;
            let reply = Reply { id: command.id, invoked, returned: now().as_nanos(), outcome };
            let line = serde_json::to_string(&reply).unwrap_or_default();
            let mut out = io::stdout().lock();
            // An error means that the coordinator has ended.
            writeln!(out, "{line}").and_then(|()| out.flush()).ok();
        });
    }
    // Its guards need no release: the servers end with the coordinator.
    std::process::exit(0);
}

/// A process.
struct Player {
    url: String,
    lanes: Vec<OnceCell<Locks>>,
    held: Mutex<HashMap<String, Held>>,
}

/// A guard, and what it has recorded.
#[derive(Clone, Default)]
struct Held {
    guard: Arc<Mutex<Option<Guard>>>,
    log: Arc<Mutex<Log>>,
}

impl Player {
    async fn carry_out(&self, command: &Command) -> Outcome {
        let Some(lane) = self.lanes.get(command.lane) else { return Outcome::Absent };
        let locks = match lane.get_or_try_init(|| Locks::connect(&self.url)).await {
            Ok(locks) => locks,
            Err(error) => return failed(&error),
        };
        self.act(locks, command.action.clone()).await.unwrap_or_else(|error| failed(&error))
    }

    async fn act(&self, locks: &Locks, action: Action) -> Result<Outcome> {
        match action {
            Action::Acquire { name, owner, shared, ttl, wait, guard } => {
                let mut wanted = locks.lock(&name).mode(mode(shared)).owner(&OwnerId::sanitized(&owner));
                if let Some(ttl) = ttl {
                    wanted = wanted.ttl(ttl);
                }
                let acquired = match wait {
                    None => wanted.try_acquire().await?,
                    Some(wait) => Some(wanted.wait(wait).acquire().await?),
                };
                Ok(acquired.map_or(Outcome::Refused, |acquired| self.keep(guard, acquired)))
            }
            Action::Adopt { handle, ttl, guard } => {
                let Ok(handle) = handle.parse() else { return Ok(Outcome::Absent) };
                let adopted = match ttl {
                    None => locks.adopt(&handle).await?,
                    Some(ttl) => locks.adopt_for(&handle, ttl).await?,
                };
                Ok(self.keep(guard, adopted))
            }
            Action::Look { name } => {
                let status = locks.inspect(&name).await?;
                let entries = status.holders.into_iter().chain(status.waiters).map(|entry| Shown {
                    owner: entry.owner.to_string(),
                    token: entry.token.map(FencingToken::get),
                    expires_in: entry.expires_in,
                    broken: entry.broken.is_some(),
                });
                Ok(Outcome::Shown(entries.collect()))
            }
            Action::Break { name, token, force, reason } => {
                let Some(token) = i64::try_from(token).ok().and_then(FencingToken::new) else {
                    return Ok(Outcome::Absent);
                };
                let order = locks.break_lock(&name).token(token).reason(reason);
                let broken = if force { order.force().await? } else { order.await? };
                let tokens = broken.into_iter().filter_map(|entry| entry.token).map(FencingToken::get);
                Ok(Outcome::Broken(tokens.collect()))
            }
            Action::Log { guard } => {
                let held = lock(&self.held).remove(&guard);
                Ok(held.map_or(Outcome::Absent, |held| Outcome::Log(lock(&held.log).clone())))
            }
            Action::Handle { guard } => {
                let held = self.held(&guard);
                let guard = lock(&held.guard);
                let Some(guard) = &*guard else { return Ok(Outcome::Absent) };
                let handle = guard.handle()?;
                Ok(Outcome::Handle { text: handle.to_text(), ttl: handle.ttl() })
            }
            Action::IntoHandle { guard } => {
                let Some(guard) = self.take(&guard) else { return Ok(Outcome::Absent) };
                let handle = guard.into_handle().await?;
                Ok(Outcome::Handle { text: handle.to_text(), ttl: handle.ttl() })
            }
            Action::Downgrade { guard } => self.convert(&guard, None).await,
            Action::Upgrade { guard, wait } => self.convert(&guard, Some(wait)).await,
            Action::End { guard, way } => {
                let Some(guard) = self.take(&guard) else { return Ok(Outcome::Absent) };
                match way {
                    Way::Release => guard.release().await?,
                    Way::Drop => drop(guard),
                    Way::After(delay) => guard.release_after(delay).await?,
                    Way::Leave => guard.leave_to_expire()?,
                }
                Ok(Outcome::Done)
            }
        }
    }

    async fn convert(&self, name: &str, wait: Option<Duration>) -> Result<Outcome> {
        let Some(mut guard) = self.take(name) else { return Ok(Outcome::Absent) };
        let converted = match wait {
            None => guard.downgrade(Mode::Shared).await,
            Some(wait) => guard.upgrade(Mode::Exclusive).wait(wait).await,
        };
        let outcome = outcome_of(&guard);
        *lock(&self.held(name).guard) = Some(guard);
        converted.map(|()| outcome)
    }

    /// Keeps a guard under this name, and records its renewals and its loss.
    fn keep(&self, name: String, guard: Guard) -> Outcome {
        let (outcome, mut events) = (outcome_of(&guard), guard.events());
        let held = Held { guard: Arc::new(Mutex::new(Some(guard))), log: Arc::default() };
        let log = held.log.clone();
        lock(&self.held).insert(name, held);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let at = now().as_nanos();
                match event {
                    GuardEvent::Renewed { deadline, .. } => {
                        lock(&log).renewals.push((at, deadline.as_nanos()));
                    }
                    GuardEvent::Lost(reason) => lock(&log).lost = Some(loss(at, &reason)),
                    _ => {}
                }
            }
        });
        outcome
    }

    fn held(&self, guard: &str) -> Held {
        lock(&self.held).get(guard).cloned().unwrap_or_default()
    }

    fn take(&self, guard: &str) -> Option<Guard> {
        lock(&self.held(guard).guard).take()
    }
}

fn outcome_of(guard: &Guard) -> Outcome {
    let deadline: Moment = guard.deadline();
    Outcome::Held {
        token: guard.fencing_token().get(),
        shared: guard.mode() == Mode::Shared,
        deadline: deadline.as_nanos(),
    }
}

fn loss(at: u64, reason: &LostReason) -> Loss {
    let notice = match reason {
        LostReason::Broken(notice) => notice.reason.as_ref().map(|reason| reason.as_str().to_owned()),
        _ => None,
    };
    Loss { at, kind: reason.kind().to_owned(), notice }
}

fn failed(error: &Error) -> Outcome {
    match error.lost() {
        Some(reason) => Outcome::Lost(loss(now().as_nanos(), reason)),
        None if matches!(error, Error::Unsupported { .. }) => Outcome::Unsupported,
        None if error.is_not_acquired() => Outcome::Refused,
        None => Outcome::Failed { temporary: error.is_temporary(), text: error.chain() },
    }
}

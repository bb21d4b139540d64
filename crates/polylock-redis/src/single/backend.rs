//! The store of one server.

use std::{
    collections::HashMap,
    fmt, str,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakOrder, Capabilities, Clock, Entry, FencingToken, FirstStep, Grant, Inspect, LockName,
    LockStatus, LostReason, Mode, Moment, Operation, OwnerId, Place, Reach, Release, Renewal, Request,
    RequestId, Result, Standing, Store, SystemClock, Wake, WakeUp,
    hub::{Handed, Hub},
};
use redis::ScriptInvocation;

use super::{NAME, config::Config, scripts::Scripts};
use crate::{
    keys,
    link::{self, Answer, Link, News, PATIENCE, Question},
};

/// The lease times it gives: above its clock's step and the deadline's margin by far, and at most a day, for which a
/// holder that died can be waited for.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);

/// How often a waiter asks, though it is told: with the time that a dead connection takes to be noticed, no wait is longer
/// than a second past its turn.
const RECHECK: Duration = Duration::from_millis(500);

/// For how long a claim that was sent on a broken connection may still arrive: longer than the system tries to deliver it.
const LATE: Duration = Duration::from_secs(60);

/// Opens the store.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration makes no sense, [`polylock_core::Error::Unavailable`] if the server
/// can't be reached, refuses the user, or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

async fn open(Config(settings): Config) -> Result<Store> {
    settings.check()?;
    let hub: Arc<Hub> = Arc::default();
    let channel = link::channel();
    let ear = {
        let hub = hub.clone();
        Arc::new(move |news: News<'_>| match news {
            News::Published(news) => match str::from_utf8(news).ok().and_then(Handed::parse) {
                Some(handed) => hub.hand_over(handed),
                // Nothing of ours; waking everybody is allowed at any time.
                None => hub.ring_all(),
            },
            News::Lost => hub.ring_all(),
        })
    };
    let link = Link::new(settings.dial(NAME, 0, channel.clone(), ear)?);
    link.live().await.map_err(|trouble| link.failed(Operation::Connect, trouble))?;
    let mut capabilities = Capabilities::new(NAME, TTL);
    capabilities.reach = Reach::Machines;
    capabilities.wake = WakeUp::Pushed;
    capabilities.first_step = FirstStep::Thread;
    let scripts = Scripts::new(&settings.prefix);
    Ok(Store::inspectable(Arc::new(Server {
        capabilities,
        link,
        hub,
        scripts,
        channel,
        late: Mutex::default(),
    })))
}

/// The locks of one server.
struct Server {
    capabilities: Capabilities,
    link: Link,
    hub: Arc<Hub>,
    scripts: Scripts,
    channel: String,
    /// The requests of which a claim may still arrive, and until when.
    late: Mutex<HashMap<RequestId, Moment>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("server", &self.link.place()).finish_non_exhaustive()
    }
}

impl Server {
    async fn call(&self, operation: Operation, request: &Request, call: &ScriptInvocation<'_>) -> Answer {
        self.link.ask(operation, patience(request), Question::Script(call)).await
    }

    /// The claim of `request` may still arrive when it has been released.
    fn may_come_late(&self, request: RequestId) {
        let now = SystemClock.now();
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.retain(|_, until| *until > now);
        late.insert(request, now + LATE);
    }

    fn entry(&self, operation: Operation, entry: EntryParts) -> Result<Entry> {
        let (token, mode, age, left, owner, label) = entry;
        let strange = || self.link.strange(operation, "an entry of a lock that makes no sense");
        Ok(Entry::new(
            u8::try_from(mode).ok().and_then(Mode::from_bit).ok_or_else(strange)?,
            OwnerId::sanitized(&owner),
            &label,
            FencingToken::new(token),
            micros(age),
            micros(left),
        ))
    }

    fn entries(&self, operation: Operation, entries: Vec<EntryParts>) -> Result<Vec<Entry>> {
        let entries = entries.into_iter().map(|entry| self.entry(operation, entry));
        let mut entries = entries.collect::<Result<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.token);
        Ok(entries)
    }
}

/// Token or -1, mode, age in us, what is left in us, owner, label.
type EntryParts = (i64, i64, i64, i64, String, String);

/// How long an answer is worth waiting for on a connection that may be broken: there must be time for another.
fn patience(request: &Request) -> Duration {
    (request.ttl / 3).max(Duration::from_millis(50))
}

fn in_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}

#[async_trait]
impl Backend for Server {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let (place_ttl, ticket) =
            if request.queues { (in_micros(request.place_ttl()), self.hub.enter(request)) } else { (0, 0) };
        let mut call = self.scripts.call(&self.scripts.claim, &request.name);
        call.arg(&request.id.to_bytes()).arg(request.mode.bit()).arg(request.mode.conflicts());
        call.arg(in_micros(request.ttl)).arg(place_ttl).arg(&self.channel).arg(ticket);
        call.arg(request.owner.as_str()).arg(request.label.as_ref().map_or("", |label| label.as_str()));
        let Answer { outcome, may_come_late, .. } = self.call(Operation::Claim, request, &call).await;
        if may_come_late {
            self.may_come_late(request.id);
        }
        match self.link.read::<Vec<i64>>(Operation::Claim, outcome?)?[..] {
            [1, token, lease] => {
                let strange = || self.link.strange(Operation::Claim, "a negative token");
                let token = FencingToken::new(token).ok_or_else(strange)?;
                self.hub.forget(request.id);
                Ok(Standing::Held(Grant::new(token, micros(lease))))
            }
            [0, left, ahead, place] => {
                if request.queues {
                    self.hub.placed(request, place.unsigned_abs());
                }
                // A third of its own time, so that the place is refreshed before it has run out.
                let recheck = micros(left).min(RECHECK).min(request.place_ttl() / 3);
                Ok(Standing::Queued(Place::new(u32::try_from(ahead).ok(), recheck)))
            }
            _ => Err(self.link.strange(Operation::Claim, "neither a grant nor a place")),
        }
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let wake = self.hub.rung(request.id).await;
        if let Wake::Granted(_) = wake {
            self.hub.forget(request.id);
        }
        Ok(wake)
    }

    async fn renew(&self, request: &Request) -> Result<Renewal> {
        let mut call = self.scripts.call(&self.scripts.renew, &request.name);
        call.arg(&request.id.to_bytes()).arg(in_micros(request.ttl));
        let answer = self.call(Operation::Renew, request, &call).await.outcome?;
        Ok(match self.link.read(Operation::Renew, answer)? {
            1 => Renewal::Renewed { lease: request.ttl },
            _ => Renewal::Lost(LostReason::Gone),
        })
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.hub.forget(request.id);
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&request.id);
        let mut call = self.scripts.call(&self.scripts.release, &request.name);
        call.arg(&request.id.to_bytes()).arg(if late { in_micros(LATE) } else { 0 });
        let answer = self.call(Operation::Release, request, &call).await.outcome?;
        if late {
            self.late.lock().unwrap_or_else(PoisonError::into_inner).remove(&request.id);
        }
        self.link.read::<i64>(Operation::Release, answer).map(|_| Release::Released)
    }
}

#[async_trait]
impl Inspect for Server {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let call = self.scripts.call(&self.scripts.inspect, name);
        let answer = self.link.ask(Operation::Inspect, PATIENCE, Question::Script(&call)).await.outcome?;
        let (holders, waiters): (Vec<EntryParts>, Vec<EntryParts>) =
            self.link.read(Operation::Inspect, answer)?;
        let holders = self.entries(Operation::Inspect, holders)?;
        Ok(LockStatus::new(name.clone(), holders, self.entries(Operation::Inspect, waiters)?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let names = self.scripts.keys.in_use(&self.link, "hq", prefix).await?;
        keys::in_use_of(self, &names).await
    }

    async fn break_lock(&self, name: &LockName, _: &BreakOrder) -> Result<Vec<Entry>> {
        let call = self.scripts.call(&self.scripts.break_lock, name);
        let answer = self.link.ask(Operation::Break, PATIENCE, Question::Script(&call)).await.outcome?;
        let holders = self.link.read(Operation::Break, answer)?;
        self.entries(Operation::Break, holders)
    }
}

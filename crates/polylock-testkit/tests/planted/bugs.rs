//! A store with one bug at a time.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakNotice, BreakOrder, Capabilities, ClaimOutcome, Clock, Conversion, ConversionOutcome,
    Convert, Entry, Fencing, FencingToken, Grant, HoldLifetime, Inspect, KeepAlive, KeepRecord, LockName,
    LockStatus, LostReason, Mode, Modes, Moment, Notifications, Order, Park, RaiseToken, Record, Release,
    Request, RequestId, Result, Store, StoredRecord, SystemClock, Wake,
};

use crate::bug::Bug;

/// A connection to a store with a bug.
pub struct Broken {
    inner: Store,
    capabilities: Capabilities,
    bug: Bug,
    state: Arc<Mutex<State>>,
}

/// The state of the bugs, shared by all connections to a store.
#[derive(Default)]
pub struct State {
    holders: HashMap<LockName, Request>,
    queued: HashSet<RequestId>,
    released: HashSet<RequestId>,
    aliases: HashMap<RequestId, RequestId>,
    seen: Vec<RequestId>,
    last_notice: Option<BreakNotice>,
    written: HashMap<LockName, Record>,
    /// The ends of the leases.
    ends: HashMap<RequestId, Moment>,
}

impl State {
    pub fn holders(&self) -> Vec<Request> {
        self.holders.values().cloned().collect()
    }
}

impl Broken {
    pub fn connect(inner: Store, bug: Bug, state: Arc<Mutex<State>>) -> Store {
        let mut capabilities = inner.backend.capabilities().clone();
        if bug == Bug::EmptyTtlRange {
            capabilities.ttl = Duration::from_secs(2)..=Duration::from_secs(1);
        }
        if bug == Bug::Minimal {
            capabilities.modes = Modes::ExclusiveOnly;
            capabilities.order = Order::Unordered;
            capabilities.fencing = Fencing::Absent;
            capabilities.notifications = Notifications::Polled;
            capabilities.hold_lifetime = HoldLifetime::Session;
        }
        let alerts = inner.alerts.clone().filter(|_| bug != Bug::NeverAlerts).unwrap_or_default();
        let (raise, records, convert) = (inner.raise.clone(), inner.records.clone(), inner.convert.clone());
        let broken = Arc::new(Self { inner, capabilities, bug, state });
        let store = Store::inspectable(broken.clone()).alerting(alerts);
        let store = if broken.inner.park.is_some() { store.parking(broken.clone()) } else { store };
        let store = match convert {
            Some(_) if bug.is_in_conversions() => store.converting(broken.clone()),
            Some(convert) => store.converting(convert),
            None => store,
        };
        let store = match records {
            Some(_) if bug.is_in_records() => store.recording(broken.clone()),
            Some(records) => store.recording(records),
            None => store,
        };
        match raise {
            Some(_) if bug == Bug::NeverRaises => store.raising(broken),
            Some(raise) => store.raising(raise),
            None => store,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, name: &LockName) -> LockName {
        let changed = match self.bug {
            Bug::FoldsNames => Some(name.as_str().trim().to_lowercase()).filter(|name| !name.is_empty()),
            Bug::OneLockForAll => Some("all".to_owned()),
            Bug::TruncatesNames => name.as_str().get(..254).map(str::to_owned),
            _ => None,
        };
        changed.and_then(|name| LockName::new(name).ok()).unwrap_or_else(|| name.clone())
    }

    /// Returns the request as the store with the bug interprets it.
    fn misread(&self, request: &Request) -> Request {
        let mut state = self.state();
        state.seen.push(request.id);
        let mut misread = request.clone();
        misread.name = self.name(&request.name);
        match self.bug {
            Bug::GrantsEveryRequest => {
                let number = state.seen.iter().position(|seen| *seen == request.id).unwrap_or(0);
                misread.name = LockName::new(format!("{number}")).unwrap();
            }
            Bug::NoQueue => misread.queues = false,
            Bug::QueuesTries => misread.queues = true,
            Bug::NeverExpires => misread.ttl = Duration::from_secs(3600),
            Bug::ExpiresEarly | Bug::GrantsHalf => misread.ttl = request.ttl / 2,
            Bug::EveryModeExclusive => misread.mode = Mode::Exclusive,
            Bug::SharedIsWeak if request.mode == Mode::Shared => misread.mode = Mode::ConcurrentRead,
            Bug::DuplicatesClaims => {
                misread.id = state.aliases.get(&request.id).copied().unwrap_or(request.id);
            }
            _ => {}
        }
        misread
    }

    /// Makes the hold of `request` end in its TTL, unless that is set again.
    fn set_end(&self, request: &Request) {
        let (store, state, request) = (self.inner.backend.clone(), self.state.clone(), request.clone());
        let end = SystemClock.now() + request.ttl;
        self.state().ends.insert(request.id, end);
        tokio::spawn(async move {
            SystemClock.sleep_until(end).await;
            let is_last =
                state.lock().unwrap_or_else(PoisonError::into_inner).ends.get(&request.id) == Some(&end);
            if is_last {
                store.release(&request).await.unwrap();
            }
        });
    }

    fn reported(&self, request: &Request, grant: Grant) -> Grant {
        match self.bug {
            Bug::ConstantToken => Grant::new(FencingToken::new(1).unwrap(), grant.lease),
            Bug::NeverExpires | Bug::ExpiresEarly => Grant::new(grant.token, request.ttl),
            Bug::ExaggeratesLeases => Grant::new(grant.token, grant.lease * 2),
            _ => grant,
        }
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Broken");
        if self.bug == Bug::ShowsIds {
            let ids: Vec<String> = self.state().seen.iter().map(|id| hex(*id)).collect();
            shown.field("requests", &ids);
        }
        shown.finish_non_exhaustive()
    }
}

impl Broken {
    async fn keep(&self, request: &Request) -> Result<KeepAlive> {
        let misread = self.misread(request);
        let held = |lease, terms| KeepAlive::Held { lease, terms };
        match self.bug {
            Bug::RenewalAlwaysSucceeds => return Ok(held(request.ttl, None)),
            Bug::DoesNotKeepWaitersAlive if self.state().queued.contains(&request.id) => {
                return Ok(KeepAlive::Queued);
            }
            _ => {}
        }
        let outcome = self.inner.backend.keep_alive(&[Arc::new(misread.clone())]).await?.remove(0);
        Ok(match (self.bug, outcome) {
            (Bug::RenewalCreates, KeepAlive::Lost(reason)) => match self.inner.backend.claim(&misread).await?
            {
                ClaimOutcome::Granted(grant) => held(grant.lease, None),
                ClaimOutcome::Queued(_) => KeepAlive::Lost(reason),
            },
            (Bug::RenewsBroken, KeepAlive::Lost(LostReason::Broken(_))) => held(request.ttl, None),
            (Bug::KeepsTheLastNotice, KeepAlive::Lost(LostReason::Broken(_))) => {
                KeepAlive::Lost(LostReason::Broken(self.state().last_notice.clone().unwrap()))
            }
            (Bug::ExaggeratesLeases, KeepAlive::Held { lease, terms }) => held(lease * 2, terms),
            (Bug::OmitsTerms, KeepAlive::Held { lease, .. }) => held(lease, None),
            (Bug::RenewalShortens, outcome @ KeepAlive::Held { .. }) => {
                self.set_end(request);
                outcome
            }
            (_, outcome) => outcome,
        })
    }
}

fn hex(id: RequestId) -> String {
    id.to_bytes().into_iter().map(|byte| format!("{byte:02x}")).collect()
}

#[async_trait]
impl Backend for Broken {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let mut misread = self.misread(request);
        match self.bug {
            Bug::ForgetsPositions if self.state().queued.contains(&request.id) => {
                self.inner.backend.release(&misread).await?;
            }
            Bug::GrantsAgain
                if self.state().holders.get(&request.name).is_some_and(|held| held.id == request.id) =>
            {
                self.inner.backend.release(&misread).await?;
            }
            Bug::DuplicatesClaims => {
                misread.id = RequestId::random();
                self.state().aliases.insert(request.id, misread.id);
            }
            Bug::GrantsReleased if self.state().released.contains(&request.id) => {
                misread.id = RequestId::random();
            }
            Bug::Blocks => std::thread::sleep(Duration::from_millis(3)),
            Bug::TracesIds => tracing::trace!(request = hex(request.id), "claim"),
            _ => {}
        }
        let outcome = self.inner.backend.claim(&misread).await?;
        Ok(match outcome {
            ClaimOutcome::Granted(grant) => {
                self.state().queued.remove(&request.id);
                self.state().holders.insert(request.name.clone(), request.clone());
                if self.bug == Bug::RenewalShortens {
                    self.set_end(request);
                }
                ClaimOutcome::Granted(self.reported(request, grant))
            }
            ClaimOutcome::Queued(position) => {
                self.state().queued.insert(request.id);
                let number = position.number.filter(|_| self.bug != Bug::OmitsNumbers);
                ClaimOutcome::Queued(position.number(number))
            }
        })
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        match self.bug {
            Bug::NeverNotifies | Bug::OmitsNumbers => std::future::pending().await,
            Bug::NoQueue => {
                // At random: waiters with equal pauses keep their order on a busy machine.
                let pause = Duration::from_millis(fastrand::u64(1..10));
                SystemClock.sleep_until(SystemClock.now() + pause).await;
                Ok(Wake::Stale)
            }
            _ => self.inner.backend.wait(&self.misread(request)).await,
        }
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let mut outcomes = Vec::new();
        for request in requests {
            outcomes.push(self.keep(request).await?);
        }
        if self.bug == Bug::ShufflesOutcomes {
            outcomes.reverse();
        }
        if self.bug == Bug::KeepsHalfABatchAlive {
            outcomes.truncate(requests.len().div_ceil(2));
        }
        Ok(outcomes)
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let misread = self.misread(request);
        match self.bug {
            Bug::GrantsReleased => {
                self.state().released.insert(request.id);
            }
            Bug::ForgetsReleases => return Ok(Release::Released),
            Bug::NeverWithdraws if self.state().queued.contains(&request.id) => {
                return Ok(Release::Released);
            }
            Bug::ReleasesAnyHolder => {
                let holder = self.state().holders.remove(&request.name);
                if let Some(holder) = holder {
                    self.inner.backend.release(&holder).await?;
                }
            }
            _ => {}
        }
        self.state().holders.retain(|_, holder| holder.id != request.id);
        let outcome = self.inner.backend.release(&misread).await?;
        let is_repeated = self.bug == Bug::ReportsBreaksOnce && !self.state().released.insert(request.id);
        Ok(if is_repeated || self.bug == Bug::ReleaseAlwaysSucceeds { Release::Released } else { outcome })
    }

    fn request_records(&self) -> Option<usize> {
        let unreleased = self.state().holders.len();
        match self.bug {
            Bug::KeepsUnreleasedRecords => Some(unreleased),
            _ => self.inner.backend.request_records(),
        }
    }
}

#[async_trait]
impl Park for Broken {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let park = self.inner.park.as_ref().unwrap();
        match self.bug {
            Bug::ParkDoesNothing => return Ok(Release::Released),
            Bug::ParkReleases => return self.inner.backend.release(request).await,
            _ => {}
        }
        let mut token = token;
        if self.bug == Bug::ParksAnyHold {
            let status = self.inner.inspect.as_ref().unwrap().inspect(&request.name).await?;
            token = tokens(&status)[0].unwrap();
        }
        let left = if self.bug == Bug::ExpiresEarly { left / 2 } else { left };
        park.park(&self.misread(request), token, left).await
    }
}

fn tokens(status: &LockStatus) -> Vec<Option<FencingToken>> {
    status.holders.iter().map(|holder| holder.token).collect()
}

#[async_trait]
impl RaiseToken for Broken {
    async fn raise(&self, _: &Request, to: FencingToken) -> Result<FencingToken> {
        Ok(FencingToken::new(to.get() - 1).unwrap())
    }
}

#[async_trait]
impl Convert for Broken {
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome> {
        let convert = self.inner.convert.as_ref().unwrap();
        let next = || FencingToken::new(conversion.from.get() + 1).unwrap();
        let waits = conversion.waits && self.bug != Bug::ForgetsUpgrades;
        match self.bug {
            Bug::NeverConverts => return Ok(ConversionOutcome::Converted(next())),
            Bug::KeepsUpgrades if conversion.held == conversion.to => {
                return Ok(ConversionOutcome::Converted(conversion.from));
            }
            _ => {}
        }
        Ok(match (self.bug, convert.convert(request, &conversion.waits(waits)).await?) {
            (Bug::ConvertsAgain, ConversionOutcome::OtherToken(token)) => {
                let again = Conversion::new(token, conversion.held, conversion.to);
                convert.convert(request, &again).await?
            }
            (Bug::ConvertsLostHolds, ConversionOutcome::Lost(_)) => ConversionOutcome::Converted(next()),
            (_, outcome) => outcome,
        })
    }
}

#[async_trait]
impl KeepRecord for Broken {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        let stored = self.inner.records.as_ref().unwrap().read_record(name).await?;
        Ok(match self.bug {
            Bug::ReplacesLaterRecords => {
                StoredRecord { record: self.state().written.get(name).cloned(), ..stored }
            }
            _ => stored,
        })
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        self.state().written.insert(name.clone(), record.clone());
        let keep = if self.bug == Bug::KeepsRecords { Duration::from_secs(3600) } else { keep };
        match self.bug {
            Bug::ForgetsRecords => Ok(()),
            _ => self.inner.records.as_ref().unwrap().write_record(name, record, keep).await,
        }
    }
}

#[async_trait]
impl Inspect for Broken {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let mut status = self.inner.inspect.as_ref().unwrap().inspect(&self.name(name)).await?;
        match self.bug {
            Bug::ForgetsLabels => status.holders.iter_mut().for_each(|entry| entry.label.clear()),
            Bug::ShowsWaitersReversed => status.waiters.reverse(),
            _ => {}
        }
        Ok(status)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let inspect = self.inner.inspect.as_ref().unwrap();
        if self.bug == Bug::PrefixFolds {
            let mut all = inspect.list("").await?;
            all.retain(|status| status.name.as_str().to_lowercase().starts_with(&prefix.to_lowercase()));
            return Ok(all);
        }
        let mut locks = inspect.list(prefix).await?;
        if self.bug == Bug::ForgetsLabels {
            locks.iter_mut().flat_map(|lock| &mut lock.holders).for_each(|entry| entry.label.clear());
        }
        Ok(locks)
    }

    fn lists_semaphores(&self) -> bool {
        self.inner.inspect.as_ref().unwrap().lists_semaphores()
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let inspect = self.inner.inspect.as_ref().unwrap();
        let mut order = order.clone();
        self.state().last_notice = Some(order.notice.clone());
        match self.bug {
            Bug::BreakDoesNothing => return Ok(inspect.inspect(name).await?.holders),
            Bug::BreakIsForced => order.force = true,
            Bug::ForgetsNotices => order.notice = BreakNotice::default(),
            Bug::BreaksTheNext => order.targets = tokens(&inspect.inspect(name).await?),
            Bug::BreaksAll => {
                for status in inspect.list("").await? {
                    if status.name != *name {
                        let order = BreakOrder::new(order.notice.clone(), tokens(&status));
                        inspect.break_lock(&status.name, &order).await?;
                    }
                }
            }
            _ => {}
        }
        inspect.break_lock(&self.name(name), &order).await
    }
}

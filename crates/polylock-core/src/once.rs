//! Jobs that run once per period, over all machines.

mod attempt;
mod job;
mod last_run;
mod period;
#[cfg(not(feature = "time-zones"))]
#[path = "once/without_zone.rs"]
mod zone;
#[cfg(feature = "time-zones")]
mod zone;

use std::{fmt, sync::Arc, time::Duration};

pub(crate) use self::last_run::keep_after;
#[cfg(feature = "time-zones")]
pub use self::zone::{InvalidTimeZone, TimeZone};
use self::{
    attempt::FIRST,
    job::Job,
    last_run::{Decision, decide},
    period::{Period, Periods},
};
pub use self::{
    attempt::{Attempt, RunReport},
    last_run::{LastRun, RunOutcome},
};
use crate::{
    ConfigError, Error, FencingToken, Guard, Lock, Moment, OwnerId, Progress, Request, Result,
    engine::{Steps, StoreHandle},
    many::PartialSet,
};

/// The default period: a day.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A job that runs at most once per period, over all processes: created by [`Locks::once`](crate::Locks::once).
///
/// The store keeps a record of the last run, which outlives the hold of the lock. A run begins in three steps:
///
/// 1. The lock with the name of the job is acquired.
/// 2. The record and the time are read from the *store*, so the clocks of the machines do not matter. If an attempt has succeeded in
///    the present period, or no attempt is left, the job is skipped.
/// 3. The begin of the attempt is recorded, with the fencing token of the lock. The store refuses a record with a smaller token than
///    that of the present one. The work begins only if the record is in the store and the lock is still held then.
///
/// So a process that was paused between these steps until another one holds the lock does not begin. The end of the work is recorded
/// before the lock is released. An attempt without a recorded end counts as failed, because its process may have died: after the crash
/// of a process, the job runs again in this period only with [`retries`](Self::retries). As with every lease, work that is in flight while
/// its process is paused can't be stopped: pass the [fencing token](LastRun::token) of the run to the resource.
///
/// Periods begin at [`at`](Self::at). A run that begins shortly before a period counts for it, up to a tenth of the period and a
/// minute at most: the machines that start the job at the same time have clocks that differ. If the clock of the store is set back
/// by less than a period, the job is skipped until the clock has reached the next period again.
///
/// All machines should set the same period. Each call decides by its own one.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use polylock_core::{Locks, OnceOutcome, memory};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = Locks::new(memory::connect());
/// let nightly = || locks.once("nightly").every(Duration::from_secs(24 * 3600));
/// let report = async || Ok::<_, Infallible>("the report");
/// assert!(matches!(nightly().run(async |_| report().await).await?, OnceOutcome::Succeeded("the report")));
/// // Every other process on every machine, until the day is over.
/// assert!(matches!(nightly().run(async |_| report().await).await?, OnceOutcome::Skipped(_)));
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a job does nothing until it is run"]
pub struct Once {
    handle: Arc<StoreHandle>,
    name: String,
    lock: Lock,
    periods: Periods,
    retries: u32,
}

/// The outcome of [`Once::run`].
#[derive(Debug)]
#[non_exhaustive]
pub enum OnceOutcome<T, E> {
    /// The job has run, and has succeeded.
    Succeeded(T),
    /// The job has run, and has failed. Another attempt may follow in this period if there are [`retries`](Once::retries).
    Failed(E),
    /// The job was not run: this is its last run, in the present period. Its [`next_due`](LastRun::next_due) is that of this call's period.
    Skipped(LastRun),
}

/// The outcome of [`Once::begin`].
#[derive(Debug)]
pub enum OnceBegin {
    /// The job is due, and this process may run it.
    Due(Attempt),
    /// The job is not due: this is its last run. Its [`next_due`](LastRun::next_due) is that of this call's period.
    Skipped(LastRun),
}

impl Once {
    pub(crate) fn new(handle: Arc<StoreHandle>, lock: Lock, name: &str) -> Self {
        let periods = Periods { every: DAY, at: Duration::ZERO, zone: None };
        Self { handle, name: name.to_owned(), lock, periods, retries: 0 }
    }

    /// Sets the length of a period, from one second to ten years; one day by default.
    pub const fn every(mut self, every: Duration) -> Self {
        self.periods.every = every;
        self
    }

    /// Sets the begin of a period, as the time after midnight in UTC or the time zone; midnight by default. It must be less than a day.
    ///
    /// It needs a period that divides a day or consists of whole days. Periods of several days are counted from 1 January 1970.
    pub const fn at(mut self, at: Duration) -> Self {
        self.periods.at = at;
        self
    }

    /// Counts the periods by the days of this time zone, instead of by those of UTC: [`at`](Self::at) is the time after midnight on its clock.
    ///
    /// Periods must be whole days, which may have 23 or 25 hours. A period begins when the clock shows `at` for the first time on that day or,
    /// if the clock skips that time, right after the gap. Give all machines the same zone, and versions of its database that agree.
    #[cfg(feature = "time-zones")]
    #[cfg_attr(docsrs, doc(cfg(feature = "time-zones")))]
    pub fn time_zone(mut self, zone: &TimeZone) -> Self {
        self.periods.zone = (!zone.is_utc()).then(|| zone.clone());
        self
    }

    /// Sets the number of further attempts in a period, by any process, after an attempt that has failed or has not recorded its end.
    /// The default is 0: the work begins once per period at most, whatever happens.
    pub const fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the TTL of the lock under which the job runs.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Sets the time limit for waiting until this process may begin: for another process that runs the job, and for the store. With
    /// [`Duration::ZERO`], each is tried once.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// Sets the time for which the store may be unreachable, without interruption, before waiting fails.
    pub fn outage(mut self, outage: Duration) -> Self {
        self.lock = self.lock.outage(outage);
        self
    }

    /// Sets the label, which inspection and [`LastRun`] show: at most 255 bytes without control characters.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.lock = self.lock.label(label);
        self
    }

    /// Sets the owner, which inspection and [`LastRun`] show; see [`Lock::owner`].
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.lock = self.lock.owner(owner);
        self
    }

    /// Sets the receiver of the queue position and of outages, for a display.
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.lock = self.lock.progress(progress);
        self
    }

    /// Checks the period, before the store is needed.
    ///
    /// # Errors
    /// [`ConfigError`] on `every`, `at` or `time_zone`.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.periods.check()
    }

    /// Runs `work` if the job is due, and records the outcome.
    ///
    /// `work` runs under the lock, as in [`Guard::run`](crate::Guard::run): it is dropped if the lock is lost. Its argument describes the run,
    /// with the fencing token.
    ///
    /// # Errors
    /// The same as [`begin`](Self::begin); [`Error::Lost`](crate::Error::Lost) if the lock was lost before the end of the work was recorded:
    /// the attempt then counts as failed.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and releases the lock. An attempt that has begun by then counts as failed.
    #[allow(clippy::future_not_send, reason = "it is as `Send` as the future of the work")]
    pub async fn run<F, T, E>(self, work: F) -> Result<OnceOutcome<T, E>>
    where
        F: AsyncFnOnce(LastRun) -> Result<T, E>,
        E: fmt::Display,
    {
        let Attempt { guard, report } = match self.begin().await? {
            OnceBegin::Due(attempt) => attempt,
            OnceBegin::Skipped(last) => return Ok(OnceOutcome::Skipped(last)),
        };
        let outcome = guard.run(async {
            let outcome = work(report.run().clone()).await;
            match &outcome {
                Ok(_) => report.succeeded().await?,
                Err(error) => report.failed(&error.to_string()).await?,
            }
            Ok::<_, Error>(outcome)
        });
        Ok(match outcome.await?? {
            Ok(output) => OnceOutcome::Succeeded(output),
            Err(error) => OnceOutcome::Failed(error),
        })
    }

    /// Waits until no other process runs the job, and begins an attempt if it is due. A job that is not due needs no lock.
    ///
    /// [`run`](Self::run) calls this. Call it directly if the work needs the guard itself.
    ///
    /// Once the begin of the attempt is being recorded, only the lease limits the time for that: an attempt that is given up then may be
    /// recorded all the same, and counts.
    ///
    /// # Errors
    /// The same as [`Lock::acquire`]. [`Error::Unsupported`](crate::Error::Unsupported) if the store keeps no records;
    /// [`Error::Config`](crate::Error::Config) for an invalid period; [`Error::Lost`](crate::Error::Lost) if the lock was lost before the begin
    /// of the attempt was recorded: the attempt then counts as failed if the record was written nevertheless.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. An attempt whose begin was recorded by then counts as failed. A future that is not polled does
    /// not keep the lock: after at most 5 s, or the TTL while it records the attempt, it is released, and begins again with its next poll.
    pub async fn begin(self) -> Result<OnceBegin> {
        let job = Job::new(self.handle.clone(), &self.name)?;
        self.check()?;
        let steps = Steps::begin(&self.handle.context, self.lock.options());
        let progress = self.lock.receiver();
        let (last, now) = steps.retry(None, progress, || job.read(steps.reply_by())).await?;
        let period = self.periods.at_time(now);
        if let Decision::Skip(last) = decide(last.as_ref(), period, self.retries) {
            return Ok(self.skipped(last, period));
        }
        loop {
            if let Some(begun) = self.begin_locked(&job, &steps).await? {
                return Ok(begun);
            }
        }
    }

    /// Begins an attempt under the lock if it is due; returns `None` if the caller was not polled, and the lock was released.
    async fn begin_locked(&self, job: &Job, steps: &Steps) -> Result<Option<OnceBegin>> {
        let progress = self.lock.receiver();
        let lock = self.lock.step(job.name().clone(), steps);
        let guard = lock.acquire().await.map_err(|error| steps.failed(error))?;
        let hold = guard.shared_hold().hold().clone();
        let ttl = self.lock.options().ttl;
        let read = steps.retry(Some(&hold), progress, || job.read(steps.reply_by()));
        let Some((guard, read)) = self.keep_while(guard, ttl.min(Request::MAX_QUEUE_LEASE), read).await?
        else {
            return Ok(None);
        };
        let (last, now) = read?;
        let period = self.periods.at_time(now);
        let attempt = match decide(last.as_ref(), period, self.retries) {
            Decision::Run { attempt } => attempt,
            Decision::Skip(last) => {
                // If this is not acknowledged, the lease expires.
                guard.release().await.ok();
                return Ok(Some(self.skipped(last, period)));
            }
        };
        let request = &hold.request;
        let run = LastRun {
            token: guard.fencing_token(),
            owner: request.owner.clone(),
            label: request.label.as_ref().map_or_else(String::new, |label| label.as_str().to_owned()),
            attempt,
            started_at: now,
            outcome: RunOutcome::Unfinished,
            period_begin: period.begin,
            next_due: period.end,
        };
        guard.ensure_held()?;
        // The attempt counts once it is recorded, so it is given up only after the whole lease.
        let write = job.write(Some(&hold), &run, FIRST);
        let Some((guard, written)) = self.keep_while(guard, ttl, write).await? else { return Ok(None) };
        written?;
        guard.ensure_held()?;
        Ok(Some(OnceBegin::Due(Attempt { report: RunReport::new(job.clone(), run, Some(hold)), guard })))
    }

    /// Returns the output of `work` with the guard, or `None` if the caller was not polled for `unpolled`: then the lock is released.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost meanwhile.
    async fn keep_while<T>(
        &self,
        guard: Guard,
        unpolled: Duration,
        work: impl Future<Output = T>,
    ) -> Result<Option<(Guard, T)>> {
        let mut kept = PartialSet::new(self.handle.context.clone(), unpolled);
        kept.add(guard);
        let output = kept.keep_while(work).await;
        let Some(guard) = kept.take().pop().map(Guard::received) else { return Ok(None) };
        match output {
            Some(output) => Ok(Some((guard, output))),
            None => guard.ensure_held().map(|()| None),
        }
    }

    fn skipped(&self, last: &LastRun, present: Period) -> OnceBegin {
        let next_due = self.periods.due_after(last.period_begin, present);
        OnceBegin::Skipped(LastRun { next_due, ..last.clone() })
    }

    /// Returns the report of the attempt with this `token`, for a process without its guard: another server of a lock service, for
    /// example, to which the client of the attempt sends the outcome.
    ///
    /// The store refuses the outcome of an attempt after which another one has begun, although nothing here shows that the lock is
    /// still held. A temporary failure of the store is not repeated. A repeated report does not change the first one.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if another attempt has begun, or the record is gone; the same as [`last_run`](Self::last_run).
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn report(&self, token: FencingToken) -> Result<RunReport> {
        let job = Job::new(self.handle.clone(), &self.name)?;
        let run = job.read(Moment::NEVER).await?.0.filter(|run| run.token == token);
        let run = run.ok_or_else(|| job.superseded())?;
        Ok(RunReport::new(job, run, None))
    }

    /// Returns the last run of the job; `None` if the store has no record of one.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the store keeps no records;
    /// [`Error::InvalidName`](crate::Error::InvalidName); [`Error::Unavailable`](crate::Error::Unavailable).
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn last_run(&self) -> Result<Option<LastRun>> {
        Ok(Job::new(self.handle.clone(), &self.name)?.read(Moment::NEVER).await?.0)
    }
}

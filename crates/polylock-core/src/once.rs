//! Jobs that run once per period, over all machines.

mod last_run;
mod period;

use std::{fmt, sync::Arc, time::Duration};

use self::{
    last_run::{Decision, decide},
    period::{Period, Periods},
};
pub use self::last_run::{LastRun, RunOutcome};
use crate::{
    ConfigError, Error, Fault, Guard, KeepRecord, Lock, LockName, LostReason, Operation, OwnerId, Progress, Record,
    RecordVersion, Result, StoredRecord, Unavailable, duration,
    engine::{Backoff, Hold, StoreHandle},
    io, owner,
};

/// The length of a day, the default period.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The longest pause before a failed read or write of the record is repeated, before the jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A job that runs at most once per period, over all processes: created by [`Locks::once`](crate::Locks::once).
///
/// The store keeps a record of the last run, beyond the hold of the lock. A run is decided in three steps:
///
/// 1. The lock with the name of the job is acquired.
/// 2. The record and the time are read from the *store*, so the clocks of the machines do not matter. If the job has succeeded in the
///    present period, or no attempt is left, the job is skipped.
/// 3. The begin of the attempt is recorded by a compare-and-set: the store writes it only if the record is still the one that was read.
///
/// So each attempt of each period belongs to one process at most, even if a process was paused beyond the end of its lease between these
/// steps. The end of the run is recorded before the lock is released. An attempt without a recorded end counts as failed, because its
/// process may have died.
///
/// Periods begin at [`at`](Self::at), and a run up to a minute before counts for the next period, so it does not matter that the machines
/// start the job at slightly different times.
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
    /// The job was not run: it has run in this period before.
    Skipped(LastRun),
}

/// The first step of a job: see [`Once::begin`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Begun {
    /// The job is due, and this process may run it.
    Due(Attempt),
    /// The job is not due.
    Skipped(LastRun),
}

impl Once {
    pub(crate) fn new(handle: Arc<StoreHandle>, name: &str) -> Self {
        let lock = Lock::new(handle.clone(), name);
        let periods = Periods { every: DAY, at: Duration::ZERO };
        Self { handle, name: name.to_owned(), lock, periods, retries: 0 }
    }

    /// Sets the length of a period, from one second on; one day by default.
    pub const fn every(mut self, every: Duration) -> Self {
        self.periods.every = every;
        self
    }

    /// Sets the begin of a period, as the time after midnight in UTC; midnight by default. Periods of a day begin at that time of
    /// day; shorter ones are aligned to it, and longer ones to it on a Thursday, 1 January 1970.
    pub const fn at(mut self, at: Duration) -> Self {
        self.periods.at = at;
        self
    }

    /// Sets the number of further attempts in a period, by any process, after an attempt that has failed or has not recorded its end.
    /// The default is 0: the job begins once per period at most, whatever happens.
    pub const fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the TTL of the lock under which the job runs.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Sets the time limit for waiting while another process runs the job. With [`Duration::ZERO`], the lock is tried once.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// Sets the label, which inspection and [`LastRun`] show: at most 255 bytes without control characters.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.lock = self.lock.label(label);
        self
    }

    /// Sets the owner, which inspection and [`LastRun`] show. The default is the owner of the [`Locks`](crate::Locks).
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.lock = self.lock.owner(owner);
        self
    }

    /// Sets the receiver of the queue position and of outages, for a display.
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.lock = self.lock.progress(progress);
        self
    }

    /// Runs `work` if the job is due, and records the outcome. Waits for another process that runs the job.
    ///
    /// `work` runs under the lock, as in [`Guard::run`]: it is dropped if the lock is lost. Its argument describes the run, with the
    /// fencing token.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store keeps no records; [`Error::Lost`] if the lock was lost before the end was recorded, so
    /// the attempt counts as failed; [`Error::Config`] for an invalid period; the same as [`Lock::acquire`];
    /// [`Error::Unavailable`] if the record can't be read or written.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and releases the lock. An attempt that was begun then counts as failed.
    #[allow(clippy::future_not_send, reason = "it is as `Send` as the future of the work")]
    pub async fn run<F, T, E>(self, work: F) -> Result<OnceOutcome<T, E>>
    where
        F: AsyncFnOnce(LastRun) -> Result<T, E>,
        E: fmt::Display,
    {
        let attempt = match self.begin().await? {
            Begun::Due(attempt) => attempt,
            Begun::Skipped(last) => return Ok(OnceOutcome::Skipped(last)),
        };
        let Attempt { guard, report } = attempt;
        let outcome = guard.run(async {
            let outcome = work(report.run.clone()).await;
            let recorded = match &outcome {
                Ok(_) => report.succeeded().await,
                Err(error) => report.failed(&error.to_string()).await,
            };
            recorded.map(|()| outcome)
        });
        Ok(match outcome.await?? {
            Ok(output) => OnceOutcome::Succeeded(output),
            Err(error) => OnceOutcome::Failed(error),
        })
    }

    /// Waits until no other process runs the job, and begins an attempt if it is due.
    ///
    /// [`run`](Self::run) calls this. Call it directly if the work needs the guard itself.
    ///
    /// # Errors
    /// The same as [`run`](Self::run).
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. An attempt that was begun by then counts as failed.
    pub async fn begin(self) -> Result<Begun> {
        let job = Job::new(self.handle, &self.name)?;
        if self.periods.every < Periods::SHORTEST {
            let problem = format!("must be at least {}", duration::format(Periods::SHORTEST));
            return Err(ConfigError::new("every", problem).into());
        }
        // Most calls find that the job is done, and need no lock.
        if let Ok((Some((last, _)), present)) = job.read_once(&self.periods).await
            && matches!(last.outcome, RunOutcome::Succeeded { .. })
            && last.period_begin >= present.period.begin
        {
            return Ok(Begun::Skipped(last));
        }
        let guard = self.lock.acquire().await?;
        loop {
            let (last, present) = job.read(guard.shared_hold().hold(), &self.periods).await?;
            let decision = decide(last.as_ref().map(|(run, _)| run), present.period, self.retries);
            let attempt = match (decision, last.as_ref()) {
                (Decision::Run { attempt }, _) => attempt,
                (Decision::Skip, Some((last, _))) => {
                    let last = last.clone();
                    // If this is not acknowledged, the lease expires.
                    guard.release().await.ok();
                    return Ok(Begun::Skipped(last));
                }
                (Decision::Skip, None) => continue,
            };
            let request = &guard.shared_hold().hold().request;
            let run = LastRun {
                token: guard.fencing_token(),
                owner: request.owner.clone(),
                label: request.label.as_ref().map_or_else(String::new, |label| label.as_str().to_owned()),
                attempt,
                started_at: present.now,
                outcome: RunOutcome::Unfinished,
                period_begin: present.period.begin,
                next_due: present.period.end,
            };
            let replaces = last.map(|(_, version)| version);
            if job.write(guard.shared_hold().hold(), replaces, &run, FIRST).await? {
                guard.ensure_held()?;
                let hold = guard.shared_hold().hold().clone();
                return Ok(Begun::Due(Attempt { report: Report { job, run, hold, periods: self.periods }, guard }));
            }
            // A process that has lost the lock has written it meanwhile.
            guard.ensure_held()?;
        }
    }

    /// Returns the last run of the job; `None` if the store has no record of one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store keeps no records; [`Error::InvalidName`]; [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn last_run(&self) -> Result<Option<LastRun>> {
        let job = Job::new(self.handle.clone(), &self.name)?;
        Ok(job.read_once(&self.periods).await?.0.map(|(run, _)| run))
    }
}

/// The revision of the record at the begin of an attempt, and at its end.
const FIRST: u32 = 1;
const SECOND: u32 = 2;

/// An attempt that this process may run now, under the lock.
#[derive(Debug)]
#[must_use = "an attempt that is dropped counts as failed"]
pub struct Attempt {
    /// The lock of the job. Release it after the outcome was recorded.
    pub guard: Guard,
    /// The record of the attempt.
    pub report: Report,
}

/// The record of an attempt that has begun.
#[derive(Debug)]
pub struct Report {
    job: Job,
    run: LastRun,
    hold: Arc<Hold>,
    periods: Periods,
}

impl Report {
    /// Returns the attempt, as it was recorded at its begin.
    #[must_use]
    pub const fn run(&self) -> &LastRun {
        &self.run
    }

    /// Records that the attempt has succeeded. Call it before the lock is released.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the record can't be written.
    ///
    /// # Cancel safety
    /// After a drop, the outcome may or may not be recorded.
    pub async fn succeeded(&self) -> Result<()> {
        self.finish(|at| RunOutcome::Succeeded { at }).await
    }

    /// Records that the attempt has failed, and the reason. Call it before the lock is released.
    ///
    /// # Errors
    /// The same as [`succeeded`](Self::succeeded).
    ///
    /// # Cancel safety
    /// After a drop, the outcome may or may not be recorded.
    pub async fn failed(&self, reason: &str) -> Result<()> {
        self.finish(|at| RunOutcome::Failed { at, reason: owner::sanitized(reason) }).await
    }

    async fn finish(&self, outcome: impl FnOnce(Duration) -> RunOutcome) -> Result<()> {
        let (_, present) = self.job.read(&self.hold, &self.periods).await?;
        let run = LastRun { outcome: outcome(present.now), ..self.run.clone() };
        let replaces = RecordVersion { token: run.token, revision: FIRST };
        if self.job.write(&self.hold, Some(replaces), &run, SECOND).await? {
            return Ok(());
        }
        // Only a holder of a greater token replaces it.
        Err(Error::Lost { name: self.job.name.clone(), reason: LostReason::Gone })
    }
}

/// The record of a job in the store.
#[derive(Debug)]
struct Job {
    handle: Arc<StoreHandle>,
    name: LockName,
    records: Arc<dyn KeepRecord>,
}

/// The present, by the clock of the store.
#[derive(Debug, Clone, Copy)]
struct Present {
    now: Duration,
    period: Period,
}

type Found = (Option<(LastRun, RecordVersion)>, Present);

impl Job {
    fn new(handle: Arc<StoreHandle>, name: &str) -> Result<Self> {
        let name = LockName::new(name)?;
        let Some(records) = handle.context.store.records.clone() else {
            let backend = handle.context.backend();
            return Err(Error::Unsupported { backend, capability: "records of jobs" });
        };
        Ok(Self { handle, name, records })
    }

    /// Reads the record while `hold` lasts.
    async fn read(&self, hold: &Hold, periods: &Periods) -> Result<Found> {
        self.retried(hold, async || self.read_once(periods).await).await
    }

    /// Reads the record, without a second attempt.
    async fn read_once(&self, periods: &Periods) -> Result<Found> {
        let (records, name) = (self.records.clone(), self.name.clone());
        let read = async move { records.read_record(&name).await };
        let StoredRecord { record, now } = self.call(Operation::Inspect, read).await?;
        let last = record.map(|record| {
            let run = LastRun::from_record(&record).ok_or_else(|| self.unreadable())?;
            Ok::<_, Error>((run, record.version))
        });
        Ok((last.transpose()?, Present { now, period: periods.period(now) }))
    }

    /// Writes the record of `run` while `hold` lasts. Returns false if the present record is not the one to be replaced.
    async fn write(
        &self,
        hold: &Hold,
        replaces: Option<RecordVersion>,
        run: &LastRun,
        revision: u32,
    ) -> Result<bool> {
        let record = Arc::new(Record { version: RecordVersion { token: run.token, revision }, text: run.to_text() });
        let keep = run.next_due.saturating_sub(run.period_begin) * 2 + DAY;
        let write = async || {
            let (records, name, record) = (self.records.clone(), self.name.clone(), record.clone());
            let write = async move { records.write_record(&name, replaces, &record, keep).await };
            self.call(Operation::Claim, write).await
        };
        self.retried(hold, write).await
    }

    /// Repeats `attempt` after temporary errors, until `hold` has ended.
    async fn retried<T>(&self, hold: &Hold, attempt: impl AsyncFn() -> Result<T>) -> Result<T> {
        let mut backoff = Backoff::up_to(LONGEST_PAUSE);
        loop {
            match attempt().await {
                Err(error) if error.is_temporary() => {}
                outcome => return outcome,
            }
            hold.check().map(|_| ()).or_else(|ended| ended.into_result(&self.name))?;
            let context = self.handle.context.clone();
            let again = context.now() + backoff.next();
            // The runtime of the caller may have no timers.
            io::run(context.backend(), async move { context.until(again).await }).await?;
        }
    }

    /// Runs an operation on the store.
    async fn call<T: Send + 'static>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let running = self.handle.foreground.begin(operation, work)?;
        running.await.map_err(|cause| io::failed(self.handle.context.backend(), operation, cause))?
    }

    fn unreadable(&self) -> Error {
        let advice = format!("a later version of polylock has written the record of job {}: update this program", self.name);
        Unavailable::new(self.handle.context.backend(), Operation::Inspect, Fault::Permanent, advice).into()
    }
}

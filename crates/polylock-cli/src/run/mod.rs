//! `polylock run`, `polylock elect` and `polylock once`: a command under a lock.

mod command_line;
mod environment;
mod finish;
mod job;
mod lock_names;
mod nested_slot;
mod orphans;
mod outer_warden;
mod processes;
mod restart;
mod status_log;
mod supervise;
mod terminal;
mod timeline;
mod wait;
mod warden;

use std::{io, pin::Pin, time::Duration};

use polylock::{
    Attempt, Clock, Election, Error, Label, Locks, Moment, MultiGuard, MultiLock, OnceBegin, OwnerId,
    Progress, Result as LockResult, RunReport, Scope, Semaphore, SystemClock,
};
use rustix::process::Signal;

pub(crate) use self::environment::ensure_waits_for_others;
pub(crate) use self::processes::Process;
pub(crate) use self::warden::main as helper;
pub(crate) use self::warden::this_program;
use self::{
    command_line::CommandLine,
    finish::{RELEASE_TIMEOUT, Verdict},
    job::Schedule,
    lock_names::LockNames,
    orphans::OrphanReaper,
    processes::check_proc,
    restart::{Next, RestartRule},
    status_log::StatusLog,
    supervise::{EndedCommand, Reported, Supervision},
    timeline::Timeline,
    wait::{WaitContext, WaitError},
    warden::{StartError, Warden},
};
use crate::{
    args::{Elect, FOREVER, Global, Once, Run, Supervised, Waiting},
    exit::{CONFIG, Failure, INTERNAL, USAGE},
    output::{EventKind, Output, Sink},
    signals::Signals,
    store::{self, ChosenStore},
    user,
};

/// Runs a command under a lock. The exit code is the result.
pub(crate) async fn run(global: &Global, args: &Run, output: &Output) -> Result<u8, Failure> {
    run_and_log(global, args, Recipe::Lock, output).await
}

/// Runs a command while this process leads an election. The exit code is the result.
pub(crate) async fn elect(global: &Global, args: Elect, output: &Output) -> Result<u8, Failure> {
    let restarts = RestartRule::new(args.restart, args.restart_delay);
    let run = Run::exclusive(Waiting::forever(), args.common);
    run_and_log(global, &run, Recipe::Election(restarts), output).await
}

/// Runs a command if it is due in this period. The exit code is the result.
pub(crate) async fn once(global: &Global, args: Once, output: &Output) -> Result<u8, Failure> {
    let schedule =
        Schedule { every: args.every, at: args.at, time_zone: args.time_zone, retries: args.retries };
    let run = Run::exclusive(args.waiting, args.common);
    run_and_log(global, &run, Recipe::Job(schedule), output).await
}

/// The rule by which the command runs.
#[derive(Debug)]
enum Recipe {
    /// Once, under the lock.
    Lock,
    /// In each term of an election.
    Election(RestartRule),
    /// Once per period.
    Job(Schedule),
}

async fn run_and_log(global: &Global, args: &Run, recipe: Recipe, output: &Output) -> Result<u8, Failure> {
    let common = &args.common;
    let names = LockNames::new(&common.name, &args.also)?;
    if let Some(label) = &common.label {
        Label::new(label)?;
    }
    let sink = Sink::open(common.status_fd, common.status_file.clone(), output)?;
    let label = common.label.clone().unwrap_or_else(|| default_label(common));
    let mut log = StatusLog::new(sink, names, args.mode(), OwnerId::unique(), label);
    let verdict = run_under_lock(global, args, recipe, output, &mut log).await;
    let code = match verdict {
        Ok(verdict) => {
            log.verdict(verdict.name, Some(verdict.code), verdict.reason);
            Ok(verdict.code)
        }
        Err(failure) => {
            log.verdict("error", Some(failure.code), Some(failure.message.clone()));
            Err(failure)
        }
    };
    log.finish();
    code
}

/// Prepares a run and executes its phases.
async fn run_under_lock(
    global: &Global,
    args: &Run,
    recipe: Recipe,
    output: &Output,
    log: &mut StatusLog,
) -> Result<Verdict, Failure> {
    check_proc().map_err(|problem| Failure::new(CONFIG, problem))?;
    // It may read a FIFO, which a signal must end.
    let store = store::choose(global, output)?;
    let signals = Signals::listen().map_err(|error| internal_error("listen for signals", &error))?;
    let orphans = OrphanReaper::start().map_err(|error| internal_error("listen for signals", &error))?;
    if let Some(address) = args.common.metrics_listen {
        crate::metrics::serve(address)?;
    }
    let progress = Progress::default();
    let phases = Phases {
        args,
        recipe,
        report: None,
        output,
        log,
        hidden_variables: if args.common.keep_store_env { Vec::new() } else { store.variables.clone() },
        store: &store,
        command: CommandLine::new(&args.common),
        wait: WaitContext {
            output,
            store: &store.display_name,
            progress: &progress,
            limit: args.waiting.limit().filter(|wait| *wait != FOREVER && !wait.is_zero()),
            started_at: SystemClock.now(),
        },
        signals,
        orphans,
    };
    match phases.execute().await {
        Ok(verdict) | Err(EarlyEnd::Verdict(verdict)) => Ok(verdict),
        Err(EarlyEnd::Failure(failure)) => Err(failure),
    }
}

/// The acquisition of the locks, or of a slot.
type Acquisition<'a> = Pin<Box<dyn Future<Output = LockResult<MultiGuard>> + Send + 'a>>;

/// The end of a run before its command has run.
enum EarlyEnd {
    /// The lock was not acquired, or a signal has ended the wait.
    Verdict(Verdict),
    Failure(Failure),
}

impl From<Failure> for EarlyEnd {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<WaitError> for EarlyEnd {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Failed(error) => Self::Failure(error.into()),
            WaitError::Interrupted(signal) => Self::Verdict(Verdict::interrupted(signal)),
        }
    }
}

/// The phases of one run.
struct Phases<'a> {
    args: &'a Run,
    recipe: Recipe,
    /// The record of the attempt of a job, until the command has ended.
    report: Option<RunReport>,
    output: &'a Output,
    log: &'a mut StatusLog,
    store: &'a ChosenStore,
    /// The variables that are hidden from the command.
    hidden_variables: Vec<String>,
    command: CommandLine,
    /// The display of the wait for the store and for the lock.
    wait: WaitContext<'a>,
    signals: Signals,
    orphans: OrphanReaper,
}

impl Phases<'_> {
    async fn execute(mut self) -> Result<Verdict, EarlyEnd> {
        let locks = self.connect().await?;
        let connect_time = SystemClock.now().since(self.wait.started_at);
        // The store may change the value of --ttl: with ZooKeeper this is the lease in a session of that timeout.
        let ttl = locks.options().ttl;
        let grace = grace(self.args.common.grace, ttl)?;
        if let Recipe::Job(schedule) = &self.recipe {
            schedule.check(&locks)?;
        }
        match self.args.slots {
            Some(slots) => {
                let has_limit = self.wait.limit.or(locks.options().wait).is_some();
                nested_slot::ensure_ends(&locks, self.log.names.main(), slots, has_limit).await?;
            }
            None => self.run_in_outer_hold(&locks).await?,
        }
        if let Some(delay) = self.args.waiting.delay() {
            wait::pause(delay, &mut self.signals).await?;
        }
        let guard = match &self.recipe {
            Recipe::Lock => self.acquire(&locks, connect_time).await?,
            Recipe::Election(restarts) => {
                let restarts = *restarts;
                return self.lead(&locks, restarts, connect_time, ttl, grace).await;
            }
            Recipe::Job(schedule) => match self.begin(&locks, &schedule.clone(), connect_time).await? {
                OnceBegin::Due(Attempt { guard, report }) => {
                    self.report = Some(report);
                    guard.into()
                }
                OnceBegin::Skipped(last) => return Ok(job::skipped(&last, &self.log.names, self.output)),
            },
        };
        Ok(self.hold(guard, ttl, grace).await?)
    }

    /// Begins an attempt of a job if it is due.
    async fn begin(
        &mut self,
        locks: &Locks,
        schedule: &Schedule,
        connect_time: Duration,
    ) -> Result<OnceBegin, EarlyEnd> {
        let log = &*self.log;
        let job = schedule.apply_to(locks.once(log.names.main()));
        let job = job.owner(&log.owner).label(&log.label).progress(self.wait.progress);
        let waiting = &self.args.waiting;
        let wait = waiting.limit().map(|wait| wait.saturating_sub(connect_time));
        let job = wait.into_iter().fold(job, polylock::Once::wait);
        let job = waiting.outage_of_try().into_iter().fold(job, polylock::Once::outage);
        self.wait_for(locks, connect_time, job.begin()).await
    }

    /// Campaigns and runs the command in each term, until the rule ends that.
    async fn lead(
        &mut self,
        locks: &Locks,
        restarts: RestartRule,
        connect_time: Duration,
        ttl: Duration,
        grace: Duration,
    ) -> Result<Verdict, EarlyEnd> {
        let (name, owner, label) = (self.log.names.main(), &self.log.owner, &self.log.label);
        let mut election: Election =
            locks.election(name).owner(owner).label(label).progress(self.wait.progress);
        let mut elapsed = connect_time;
        loop {
            let campaign = async { election.campaign().await.map(MultiGuard::from) };
            let guard = self.wait_for(locks, elapsed, campaign).await?;
            elapsed = Duration::ZERO;
            match restarts.next(self.hold(guard, ttl, grace).await)? {
                Next::End(verdict) => return Ok(verdict),
                Next::Campaign { after, reason } => {
                    self.output.note(format!("{reason}; waiting to lead {} again", self.log.names));
                    wait::pause(after, &mut self.signals).await?;
                }
            }
        }
    }

    /// Opens the store.
    async fn connect(&mut self) -> Result<Locks, EarlyEnd> {
        let args = self.args;
        let mut builder = Locks::builder_from_config(self.store.config.clone()).progress(self.wait.progress);
        if let Some(ttl) = args.common.ttl {
            builder = builder.ttl(ttl);
        }
        builder = args.waiting.limit_connect(builder);
        let locks = wait::connect(builder.connect(), &self.wait, self.log, &mut self.signals).await?;
        let capabilities = locks.capabilities();
        self.log.backend = Some(capabilities.backend);
        if capabilities.scope == Scope::Process {
            self.output.note(
                "this store is in the memory of this process, so the lock excludes no other process; choose a store with -S",
            );
        }
        Ok(locks)
    }

    /// Replaces this process by the command if an outer run holds the locks: the outer run supervises all nested processes. Returns `Ok`
    /// if no outer run holds any.
    async fn run_in_outer_hold(&mut self, locks: &Locks) -> Result<(), Failure> {
        let (log, reentrant) = (&mut *self.log, self.args.reentrant);
        if !environment::is_held_by_outer_run(locks, &log.names, log.mode, reentrant).await? {
            return Ok(());
        }
        log.verdict("reentered", None, None);
        log.finish();
        self.output.finish();
        Err(self.command.exec(&self.hidden_variables))
    }

    /// Acquires the locks. The time until the store was reached counts as a part of the wait; the time of --jitter does not.
    async fn acquire(&mut self, locks: &Locks, connect_time: Duration) -> Result<MultiGuard, EarlyEnd> {
        let (args, log) = (self.args, &*self.log);
        let wait = args.waiting.limit().map(|wait| wait.saturating_sub(connect_time));
        let outage = args.waiting.outage_of_try();
        let acquisition: Acquisition<'_> = match args.slots {
            Some(slots) => {
                let semaphore = locks.semaphore(log.names.main(), slots).owner(&log.owner).label(&log.label);
                let semaphore = semaphore.progress(self.wait.progress);
                let semaphore = wait.into_iter().fold(semaphore, Semaphore::wait);
                let semaphore = outage.into_iter().fold(semaphore, Semaphore::outage);
                Box::pin(async { semaphore.acquire().await.map(|slot| MultiGuard::from(slot.into_guard())) })
            }
            None => {
                let lock = locks.lock_many(log.names.iter()).mode(log.mode).owner(&log.owner);
                let lock = lock.label(&log.label).progress(self.wait.progress);
                let lock = wait.into_iter().fold(lock, MultiLock::wait);
                Box::pin(outage.into_iter().fold(lock, MultiLock::outage).acquire())
            }
        };
        self.wait_for(locks, connect_time, acquisition).await
    }

    /// Waits for an acquisition. The wait has begun before, by the time `elapsed`.
    async fn wait_for<T>(
        &mut self,
        locks: &Locks,
        elapsed: Duration,
        acquisition: impl Future<Output = LockResult<T>>,
    ) -> Result<T, EarlyEnd> {
        let (args, log) = (self.args, &mut *self.log);
        self.wait.started_at = SystemClock.now() - elapsed;
        match wait::acquire(acquisition, &self.wait, log, &mut self.signals).await {
            Err(WaitError::Failed(error @ Error::NotAcquired { .. })) => {
                Err(EarlyEnd::Verdict(finish::not_acquired(args, locks, self.output, log, &error).await))
            }
            Err(WaitError::Interrupted(signal)) => {
                tokio::select! {
                    _ = locks.clone().close(RELEASE_TIMEOUT) => {}
                    signal = self.signals.next_termination() => exit_at_once(log, self.output, signal),
                }
                Err(WaitError::Interrupted(signal).into())
            }
            acquired => Ok(acquired?),
        }
    }

    /// Runs the command under the locks, and releases them.
    async fn hold(&mut self, guard: MultiGuard, ttl: Duration, grace: Duration) -> Result<Verdict, Failure> {
        let (args, acquired_at) = (self.args, SystemClock.now());
        if let Some(slot) = guard.names().next().filter(|name| name.slot().is_some()) {
            self.log.names.hold_slot(slot.clone());
        }
        self.log.write_hold(EventKind::Acquired, &guard);
        for (name, token) in guard.fencing_tokens() {
            self.output
                .detail(format!("lock {name} acquired, token {token}, in {}", self.store.display_name));
        }
        let hold_until = args.max_hold.map_or(Moment::NEVER, |hold| acquired_at + hold);
        let timeline = Timeline::new(args.on_lost, ttl, grace, hold_until);
        let ended = self.run_command(&guard, ttl, timeline).await;
        if let Some(report) = self.report.take() {
            job::report(report, ended.as_ref(), self.output, &mut self.signals).await;
        }
        let ended = match ended {
            Ok(ended) => ended,
            Err(failure) => {
                // The command does not run. If this release fails, the lease expires.
                tokio::time::timeout(RELEASE_TIMEOUT, guard.release()).await.ok();
                return Err(failure);
            }
        };
        let min_left =
            args.min_hold.map_or(Duration::ZERO, |hold| (acquired_at + hold).since(SystemClock.now()));
        Ok(finish::finish(args, self.output, self.log, guard, ended, min_left, &mut self.signals).await)
    }

    /// Starts the command through a warden, and returns when all processes that must end with it have ended.
    async fn run_command(
        &mut self,
        guard: &MultiGuard,
        ttl: Duration,
        timeline: Timeline,
    ) -> Result<EndedCommand, Failure> {
        let foreground = self.args.common.foreground || terminal::is_in_foreground();
        let mut warden =
            self.start_warden(guard, ttl, timeline.kill_at(guard.deadline()), foreground).await?;
        let mut supervision = Supervision {
            guard,
            warden: &mut warden,
            timeline,
            signal: self.args.common.signal,
            from_terminal: if foreground { &[Signal::INT, Signal::QUIT] } else { &[] },
            output: self.output,
            log: self.log,
            reported: Reported::default(),
            received: Vec::new(),
        };
        let ended = supervision.run(&mut self.signals).await;
        if ended.is_err() {
            // No process may run under a lock without supervision.
            supervision.kill_all().await;
        }
        warden.shut_down().await;
        ended.map_err(|error| internal_error("supervise the command", &error))
    }

    /// Starts the warden, which starts the command.
    async fn start_warden(
        &self,
        guard: &MultiGuard,
        ttl: Duration,
        kill_at: Moment,
        foreground: bool,
    ) -> Result<Warden, Failure> {
        let backend = self.log.backend.unwrap_or_default();
        let environment = |process: &mut std::process::Command| {
            environment::hide_variables(process, &self.hidden_variables);
            environment::describe_hold(process, guard, &self.log.names);
            environment::describe_attempt(process, self.report.as_ref().map(RunReport::run));
            environment::describe_store(process, backend, ttl, &self.store.reference);
        };
        let arguments = self.command.arguments();
        Warden::start(environment, arguments, foreground, kill_at, &self.orphans).await.map_err(|error| {
            let lost_exit_code = self.args.lost_exit_code;
            // After a pause at this point, it may be too late to start the command.
            match (guard.ensure_held(), error) {
                (Err(lost), _) => Failure { code: lost_exit_code, ..lost.into() },
                _ if SystemClock.now() >= kill_at => {
                    let message = format!(
                        "the lease of lock {} ended before the command could start; use a longer --ttl",
                        self.log.names
                    );
                    Failure::new(lost_exit_code, message)
                }
                (Ok(()), StartError::Command(error)) => self.command.start_failure(&error),
                (Ok(()), error) => Failure::new(INTERNAL, error.text()),
            }
        })
    }
}

/// Ends the program without waiting for the store: the entries of this process expire there.
fn exit_at_once(log: &mut StatusLog, output: &Output, signal: Signal) -> ! {
    let Verdict { name, code, reason, .. } = Verdict::interrupted(signal);
    log.verdict(name, Some(code), reason);
    log.finish();
    output.finish();
    // This skips the work that the library does at the end of a program.
    signal_hook::low_level::exit(code.into())
}

/// Returns the default label: the user and the program. The arguments are omitted, since they may contain secrets.
fn default_label(args: &Supervised) -> String {
    let program = match &args.command_line {
        Some(line) => line.to_string_lossy().split_whitespace().next().unwrap_or_default().to_owned(),
        None => args.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
    };
    let program = program.rsplit('/').next().unwrap_or_default();
    let text: String = format!("{}: {program}", user::name()).chars().take(60).collect();
    if Label::new(&text).is_ok() { text } else { String::new() }
}

/// Returns the time between the signal and the kill.
fn grace(requested: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    let Some(grace) = requested else { return Ok(ttl / 3) };
    if grace > ttl / 2 {
        let format = polylock::duration::format;
        let message = format!(
            "a grace period of {} is too long for a TTL of {}: the command would be stopped before the lease can be \
             renewed; use at most half of the TTL",
            format(grace),
            format(ttl)
        );
        return Err(Failure::new(USAGE, message));
    }
    Ok(grace)
}

fn internal_error(what: &str, error: &io::Error) -> Failure {
    Failure::new(INTERNAL, format!("can't {what}: {error}"))
}

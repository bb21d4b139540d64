//! `polylock run`: a command under a lock.

mod command_line;
mod environment;
mod finish;
mod orphans;
mod processes;
mod status_log;
mod supervise;
mod terminal;
mod timeline;
mod wait;
mod warden;

use std::{io, time::Duration};

use polylock::{Clock, Error, Guard, Label, LockName, Locks, Moment, OwnerId, Progress, Reach, SystemClock};
use rustix::process::Signal;

use self::{
    command_line::CommandLine,
    finish::{FAREWELL, Verdict},
    orphans::Orphans,
    status_log::StatusLog,
    supervise::{Ended, Reported, Supervision},
    timeline::Timeline,
    wait::{Waited, Watched},
    warden::{NotStarted, Warden},
};
pub(crate) use self::{environment::is_nested, warden::main as helper};
use crate::{
    args::{Global, Run},
    exit::{Failure, INTERNAL, USAGE},
    output::{Output, Sink, What},
    signals::Signals,
    store, user,
};

/// Runs a command under a lock; the exit code tells how it went.
pub(crate) async fn run(global: &Global, run: &Run, output: &Output) -> Result<u8, Failure> {
    let name = LockName::new(&run.name)?;
    if let Some(label) = &run.label {
        Label::new(label)?;
    }
    let sink = Sink::open(run.status_fd, run.status_file.clone(), output)?;
    let label = run.label.clone().unwrap_or_else(|| default_label(run));
    let mut log = StatusLog::new(sink, name, run.mode(), OwnerId::unique(), label);
    let verdict = under_lock(global, run, output, &mut log).await;
    let code = match verdict {
        Ok(verdict) => {
            log.verdict(verdict.word, Some(verdict.code), verdict.reason);
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

async fn under_lock(
    global: &Global,
    run: &Run,
    output: &Output,
    log: &mut StatusLog,
) -> Result<Verdict, Failure> {
    let mut signals = Signals::listen().map_err(|error| internal("listen for signals", &error))?;
    let orphans = Orphans::start().map_err(|error| internal("listen for signals", &error))?;
    let store = store::choose(global, output)?;
    let hidden = if run.keep_store_env { Vec::new() } else { store.variables.clone() };
    let (began, progress) = (SystemClock.now(), Progress::default());
    let mut connecting = Locks::builder_of(store.config.clone()).progress(&progress);
    if let Some(ttl) = run.ttl {
        connecting = connecting.ttl(ttl);
    }
    if let Some(outage) = run.outage {
        connecting = connecting.outage(outage);
    }
    if let Some(wait) = run.wait()
        // Who does not wait for other holders may wait for the store.
        && (!wait.is_zero() || run.outage.is_none())
    {
        connecting = connecting.wait(wait);
    }
    let mut watched = Watched { output, store: &store.shown, progress: &progress, limit: run.wait(), began };
    let locks = match wait::connect(connecting.connect(), &watched, log, &mut signals).await {
        Waited::Answered(locks) => locks?,
        Waited::Interrupted(signal) => return Ok(Verdict::interrupted(signal)),
    };
    let to_connect = SystemClock.now().since(began);
    log.backend = Some(locks.capabilities().backend);
    if locks.capabilities().reach == Reach::Process {
        output.note("this store is in the memory of this process alone, so the lock keeps nobody out");
    }
    // What the store makes of --ttl: with ZooKeeper, the lease in a session that lasts as long.
    let ttl = locks.options().ttl;
    let grace = grace(run.grace, ttl)?;
    let command = CommandLine::of(run);

    if environment::is_held_outside(&locks, &log.name, log.mode, run.reentrant).await? {
        // The outer run watches over all that runs in here, so this process has nothing left to do.
        log.verdict("reentered", None, None);
        log.finish();
        output.finish();
        return Err(command.become_it(&hidden));
    }
    if let Some(jitter) = run.jitter
        && let Some(signal) = wait::pause(random_part(jitter), &mut signals).await
    {
        return Ok(Verdict::interrupted(signal));
    }

    // The time until the store was reached is a part of the wait, and that of --jitter is not.
    watched.began = SystemClock.now() - to_connect;
    let mut lock =
        locks.lock(&log.name).mode(log.mode).owner(&log.owner).label(&log.label).progress(&progress);
    if let Some(wait) = run.wait() {
        lock = lock.wait(wait.saturating_sub(to_connect));
    }
    let guard = match wait::acquire(lock, &locks, &watched, log, &mut signals).await {
        Waited::Answered(Ok(guard)) => guard,
        Waited::Answered(Err(error @ Error::NotAcquired { .. })) => {
            return Ok(finish::not_acquired(run, &locks, output, log, &error).await);
        }
        Waited::Answered(Err(error)) => return Err(error.into()),
        Waited::Interrupted(signal) => {
            tokio::select! {
                _ = locks.close(FAREWELL) => {}
                signal = signals.next_end() => leave_at_once(log, output, signal),
            }
            return Ok(Verdict::interrupted(signal));
        }
    };
    let since = SystemClock.now();
    log.held(What::Acquired, &guard);
    output.detail(format!(
        "lock {} acquired, token {}, in {}",
        guard.name(),
        guard.fencing_token(),
        store.shown
    ));

    let hold_until = run.max_hold.map_or(Moment::NEVER, |hold| since + hold);
    let holding = Holding {
        run,
        output,
        guard: &guard,
        command: &command,
        timeline: Timeline::new(run.on_lost, ttl, grace, hold_until),
        ttl,
        hidden: &hidden,
        outer_store: &store.outer,
        orphans: &orphans,
    };
    let ended = match holding.until_the_end(log, &mut signals).await {
        Ok(ended) => ended,
        Err(failure) => {
            // The command does not run. If this release fails, the lease runs out by itself.
            tokio::time::timeout(FAREWELL, guard.release()).await.ok();
            return Err(failure);
        }
    };
    let min_left = run.min_hold.map_or(Duration::ZERO, |hold| (since + hold).since(SystemClock.now()));
    Ok(finish::finish(run, output, log, guard, ended, min_left, &mut signals).await)
}

/// A lock that is held for a command.
struct Holding<'a> {
    run: &'a Run,
    output: &'a Output,
    guard: &'a Guard,
    command: &'a CommandLine,
    timeline: Timeline,
    ttl: Duration,
    /// The variables that the command is not to see.
    hidden: &'a [String],
    /// What a run inside this one finds the store by.
    outer_store: &'a str,
    orphans: &'a Orphans,
}

impl Holding<'_> {
    /// Has a warden start the command, and stays until the end of everything that must end with it.
    async fn until_the_end(self, log: &mut StatusLog, signals: &mut Signals) -> Result<Ended, Failure> {
        let Self { run, output, guard, command, timeline, ttl, hidden, outer_store, orphans } = self;
        let foreground = run.foreground || terminal::is_in_foreground();
        let backend = log.backend.unwrap_or_default();
        let kill_at = timeline.kill_at(guard.deadline());
        let environment = |process: &mut std::process::Command| {
            environment::describe(process, guard, backend, ttl, hidden, outer_store);
        };
        let mut warden = match Warden::start(environment, command.words(), foreground, kill_at, orphans).await
        {
            Ok(warden) => warden,
            Err(not_started) => {
                // After a pause at the wrong moment it was too late to start anything.
                guard.ensure_held().map_err(|lost| Failure { code: run.lost_exit_code, ..lost.into() })?;
                return Err(match not_started {
                    _ if SystemClock.now() >= kill_at => {
                        let problem =
                            format!("lock {} runs out before the command could start", guard.name());
                        Failure::new(run.lost_exit_code, problem)
                    }
                    NotStarted::Command(error) => command.not_run(&error),
                    NotStarted::Warden(error) => internal("start the warden", &error),
                });
            }
        };
        let mut supervision = Supervision {
            guard,
            warden: &mut warden,
            timeline,
            signal: run.signal,
            from_terminal: if foreground { &[Signal::INT, Signal::QUIT] } else { &[] },
            output,
            log,
            reported: Reported::default(),
        };
        let ended = supervision.until_the_end(signals).await;
        if ended.is_err() {
            // Nothing runs under a lock that nobody watches.
            supervision.kill_all().await;
        }
        warden.dismiss().await;
        ended.map_err(|error| internal("watch over the command", &error))
    }
}

/// Ends the program without waiting for the store: its entries of this process run out by themselves.
fn leave_at_once(log: &mut StatusLog, output: &Output, signal: Signal) -> ! {
    let Verdict { word, code, reason } = Verdict::interrupted(signal);
    log.verdict(word, Some(code), reason);
    log.finish();
    output.finish();
    // Without what the library does at the end of a program.
    signal_hook::low_level::exit(code.into())
}

/// The user and the program, of a run without a label. Not its arguments: they may hold secrets.
fn default_label(run: &Run) -> String {
    let program = match &run.command_line {
        Some(line) => line.to_string_lossy().split_whitespace().next().unwrap_or_default().to_owned(),
        None => run.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default(),
    };
    let program = program.rsplit('/').next().unwrap_or_default();
    let text: String = format!("{}: {program}", user::name()).chars().take(60).collect();
    if Label::new(&text).is_ok() { text } else { String::new() }
}

/// The time between the signal and the kill.
fn grace(asked: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    let Some(grace) = asked else { return Ok(ttl / 3) };
    if grace > ttl / 2 {
        let format = polylock::duration::format;
        let problem = format!(
            "a grace of {} is too long for a TTL of {}: the command would be stopped before renewals had a chance; use at \
             most half of the TTL",
            format(grace),
            format(ttl)
        );
        return Err(Failure::new(USAGE, problem));
    }
    Ok(grace)
}

/// A random part of `whole`.
fn random_part(whole: Duration) -> Duration {
    // Without a random source: all of it.
    let part = getrandom::u32().unwrap_or(u32::MAX);
    whole.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

fn internal(what: &str, error: &io::Error) -> Failure {
    Failure::new(INTERNAL, format!("can't {what}: {error}"))
}

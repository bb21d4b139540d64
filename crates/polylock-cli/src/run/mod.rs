//! `polylock run`: a command under a lock.

mod environment;
mod journal;
mod supervise;
mod target;
mod timeline;
mod wait;
pub(crate) mod warden;

use std::{
    io::{self, IsTerminal},
    os::unix::process::{CommandExt, ExitStatusExt},
    time::Duration,
};

use polylock::{Clock, Error, Guard, Label, LockName, Locks, Moment, OwnerId, Reach, SystemClock};
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

use self::{
    journal::Journal,
    supervise::{Ended, Supervision},
    target::Target,
    timeline::Timeline,
    wait::Waited,
    warden::Warden,
};
use crate::{
    args::{Global, Run},
    exit::{CANT_RUN, Failure, INTERNAL, NOT_FOUND, SIGNAL, USAGE},
    output::{Output, Sink, What},
    signals::{self, Signals},
    store,
};

/// How long a release, or leaving the queue, may take before polylock goes without its confirmation.
const FAREWELL: Duration = Duration::from_secs(5);

/// How a run ended, for the last line of the status file.
struct Verdict {
    word: &'static str,
    code: u8,
    reason: Option<String>,
}

impl Verdict {
    fn new(word: &'static str, code: u8) -> Self {
        Self { word, code, reason: None }
    }

    fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    fn interrupted(signal: Signal) -> Self {
        Self::new("interrupted", signals::exit_code(signal.as_raw())).because(signals::name(signal))
    }
}

/// Runs a command under a lock; the exit code tells how it went.
pub(crate) async fn run(global: &Global, run: &Run, output: &Output) -> Result<u8, Failure> {
    let name = LockName::new(&run.name)?;
    if let Some(label) = &run.label {
        Label::new(label)?;
    }
    let sink = Sink::open(run.status_fd, run.status_file.clone(), output)?;
    let label = run.label.clone().unwrap_or_default();
    let mut journal = Journal::new(sink, name, run.mode(), OwnerId::unique(), label);
    let verdict = under_lock(global, run, output, &mut journal).await;
    match verdict {
        Ok(verdict) => {
            journal.verdict(verdict.word, Some(verdict.code), verdict.reason);
            Ok(verdict.code)
        }
        Err(failure) => {
            journal.verdict("error", Some(failure.code), Some(failure.message.clone()));
            Err(failure)
        }
    }
}

async fn under_lock(
    global: &Global,
    run: &Run,
    output: &Output,
    journal: &mut Journal,
) -> Result<Verdict, Failure> {
    let mut signals = Signals::listen().map_err(|error| internal("listen for signals", &error))?;
    let store = store::choose(global)?;
    let hidden = if run.keep_store_env { Vec::new() } else { store.variables };
    let locks = tokio::select! {
        biased;
        signal = signals.next_end() => return Ok(Verdict::interrupted(signal)),
        locks = Locks::from_config(store.config) => locks?,
    };
    journal.backend = Some(locks.capabilities().backend);
    if locks.capabilities().reach == Reach::Process {
        output.note("this store is in the memory of this process alone, so the lock keeps nobody out");
    }
    let ttl = run.ttl.unwrap_or(locks.options().ttl).max(run.min_hold.unwrap_or_default());
    let grace = grace(run.grace, ttl)?;

    if environment::is_held_outside(&locks, &journal.name, journal.mode, run.reentrant).await? {
        // The outer run watches over all that runs in here, so this process has nothing left to do.
        journal.verdict("reentered", None, None);
        let mut command = command(run);
        for variable in &hidden {
            command.env_remove(variable);
        }
        return Err(not_run(&command.as_std_mut().exec(), &command));
    }
    if let Some(jitter) = run.jitter
        && let Some(signal) = wait::pause(random_part(jitter), &mut signals).await
    {
        return Ok(Verdict::interrupted(signal));
    }

    let mut lock = locks.lock(&journal.name).mode(journal.mode).ttl(ttl).owner(&journal.owner);
    if let Some(label) = &run.label {
        lock = lock.label(label);
    }
    if let Some(wait) = run.wait() {
        lock = lock.wait(wait);
    }
    let guard = match wait::acquire(lock, &locks, output, journal, &mut signals).await {
        Waited::Answered(Ok(guard)) => guard,
        Waited::Answered(Err(error @ Error::NotAcquired { .. })) => {
            return Ok(not_acquired(run, &locks, output, journal, &error).await);
        }
        Waited::Answered(Err(error)) => return Err(error.into()),
        Waited::Interrupted(signal) => {
            locks.close(FAREWELL).await;
            return Ok(Verdict::interrupted(signal));
        }
    };
    let since = SystemClock.now();
    journal.held(What::Acquired, &guard);
    output.detail(format!("lock {} acquired, token {}", guard.name(), guard.fencing_token()));

    let hold_until = run.max_hold.map_or(Moment::NEVER, |hold| since + hold);
    let timeline = Timeline::new(run.on_lost, ttl, grace, hold_until);
    let ended = match work(run, output, journal, &guard, timeline, ttl, &hidden, &mut signals).await {
        Ok(ended) => ended,
        Err(failure) => {
            // The command never ran. If this release fails, the lease runs out by itself.
            tokio::time::timeout(FAREWELL, guard.release()).await.ok();
            return Err(failure);
        }
    };
    let min_left = run.min_hold.map_or(Duration::ZERO, |hold| (since + hold).since(SystemClock.now()));
    Ok(part(run, output, journal, guard, &ended, min_left).await)
}

/// Starts the command and its warden, and stays until the end.
#[expect(clippy::too_many_arguments, reason = "all that a run consists of comes together here, once")]
async fn work(
    run: &Run,
    output: &Output,
    journal: &mut Journal,
    guard: &Guard,
    timeline: Timeline,
    ttl: Duration,
    hidden: &[String],
    signals: &mut Signals,
) -> Result<Ended, Failure> {
    let mut warden = Warden::start(hidden).await.map_err(|error| internal("start the warden", &error))?;
    // Before the command is there: should polylock be stopped right now, the warden must know when to act.
    warden
        .kill_at(timeline.kill_at(guard.deadline()))
        .await
        .map_err(|error| internal("tell the warden", &error))?;

    let foreground = run.foreground || io::stdin().is_terminal();
    let mut command = command(run);
    environment::describe(&mut command, guard, journal.backend.unwrap_or_default(), ttl, hidden);
    if !foreground {
        command.process_group(warden.group().as_raw_nonzero().get());
    }
    let (mut child, id) = match spawn(&mut command) {
        Ok(started) => started,
        Err(error) => {
            warden.dismiss().await;
            // After a pause at the wrong moment the group is gone, because the warden has done its work.
            guard.ensure_held().map_err(|lost| Failure { code: run.lost_exit_code, ..lost.into() })?;
            return Err(not_run(&error, &command));
        }
    };
    let told = warden.watch(id).await;
    let target = if foreground { Target::in_foreground(id) } else { Target::in_group(id, warden.group()) };
    let mut supervision = Supervision {
        guard,
        child: &mut child,
        target,
        warden: &mut warden,
        timeline,
        signal: run.signal,
        from_terminal: if foreground { &[Signal::INT, Signal::QUIT] } else { &[] },
        output,
        journal,
    };
    let ended = match told {
        Ok(()) => supervision.until_the_end(signals).await,
        Err(error) => Err(error),
    };
    match ended {
        Ok(ended) => {
            warden.dismiss().await;
            Ok(ended)
        }
        Err(error) => {
            // Nothing runs under a lock that nobody watches.
            target.kill();
            child.wait().await.ok();
            Err(internal("watch over the command", &error))
        }
    }
}

/// After the command: gives the lock back, or leaves it to run out, and judges.
async fn part(
    run: &Run,
    output: &Output,
    journal: &mut Journal,
    guard: Guard,
    ended: &Ended,
    min_left: Duration,
) -> Verdict {
    let name = guard.name().clone();
    let lost = |reason: String| {
        if let Some(code) = ended.status.code() {
            output.detail(format!("the command exited with {code}"));
        }
        Verdict::new("lost", run.lost_exit_code).because(reason)
    };
    if let Some(why) = ended.why.as_ref().filter(|why| why.is_loss()) {
        let reason = match why {
            timeline::Why::Lost(reason) => reason.to_string(),
            _ => "no renewal was acknowledged in time".to_owned(),
        };
        let verdict = lost(reason);
        // It may still be ours, and it is over in any case.
        tokio::time::timeout(FAREWELL, guard.release()).await.ok();
        return verdict;
    }
    let gone = if min_left.is_zero() {
        match tokio::time::timeout(FAREWELL, guard.release()).await {
            Ok(Ok(())) => {
                journal.write(&journal.event(What::Released));
                Ok(())
            }
            Ok(Err(error @ Error::Lost { .. })) => Err(error),
            Ok(Err(_)) | Err(_) => {
                output.note(format!(
                    "the release of lock {name} was not confirmed; it ends with its lease at the latest"
                ));
                Ok(())
            }
        }
    } else {
        lasts_until(&guard, SystemClock.now() + min_left).await;
        journal.held(What::Expired, &guard);
        guard.leave_to_expire()
    };
    if let Err(error) = gone {
        return lost(error.to_string());
    }
    let code = match (ended.status.code(), ended.status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => signals::exit_code(signal),
        (None, None) => SIGNAL,
    };
    match ended.why {
        Some(_) => Verdict::new("max_hold", code).because("held for as long as --max-hold allows"),
        None => Verdict::new("command", code),
    }
}

/// Waits, if the lease will have run out by `end`, for the renewal that makes it a whole one: the first one of a lock that
/// was handed over is short.
async fn lasts_until(guard: &Guard, end: Moment) {
    loop {
        let renewed = guard.renewed();
        let left = guard.remaining();
        // The store's own count ends a margin after the deadline, and began a round trip after this one's.
        if end.since(SystemClock.now()) <= left + left / 32 {
            return;
        }
        if renewed.await.is_none() {
            return;
        }
    }
}

/// Tells who has the lock.
async fn not_acquired(
    run: &Run,
    locks: &Locks,
    output: &Output,
    journal: &Journal,
    error: &Error,
) -> Verdict {
    let status = locks.inspect(&journal.name).await.ok();
    let holder =
        status.and_then(|status| status.holders.into_iter().next()).map_or_else(String::new, |holder| {
            let label = if holder.label.is_empty() { String::new() } else { format!(" ({})", holder.label) };
            format!("; {}{label} has it", holder.owner)
        });
    let text = format!("{error}{holder}");
    if run.skip_ok {
        output.detail(&text);
        return Verdict::new("skipped", 0).because(text);
    }
    output.note(&text);
    Verdict::new("busy", run.conflict_exit_code).because(text)
}

/// The command as it was given.
fn command(run: &Run) -> Command {
    match (&run.command_line, run.command.split_first()) {
        (None, Some((program, arguments))) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        (line, _) => {
            let mut command = Command::new("/bin/sh");
            command.arg("-c").args(line);
            command
        }
    }
}

fn spawn(command: &mut Command) -> io::Result<(Child, Pid)> {
    let child = command.spawn()?;
    let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    Ok((child, id.ok_or_else(|| io::Error::other("it has no process id"))?))
}

fn not_run(error: &io::Error, command: &Command) -> Failure {
    let program = command.as_std().get_program().to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(NOT_FOUND, format!("{program}: there is no such command")),
        _ => Failure::new(CANT_RUN, format!("{program} can't be run: {error}")),
    }
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

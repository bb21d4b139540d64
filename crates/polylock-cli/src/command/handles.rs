//! `acquire`, `renew` and `release`: holds without a process.

use std::{
    env,
    io::{self, BufRead, BufReader, Read as _, Write as _},
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use clap::Parser;
use polylock::{
    Clock, Error, Guard, HoldHandle, InvalidHandle, Label, LockName, Locks, LostReason, SystemClock,
};
use rustix::process::{Pid, Signal, setsid};
use serde_json::json;
use tokio::sync::oneshot;

use crate::{
    args::{self, Acquire, Cli, Global, Handle, Renew, Waiting},
    exit::{self, Failure, INTERNAL, USAGE},
    output::Output,
    run::{Process, ensure_waits_for_others, this_program},
    signals::Signals,
    store::{self, ChosenStore},
    user, wall_clock,
};

/// The hidden word before the arguments of a keeper: the process that `--while-pid` leaves behind. It acquires the lock itself, so neither
/// the store's URL nor the handle is passed to another process.
const KEEPER: &str = "__keeper";

/// The byte that tells a keeper that its handle was passed on.
const RECEIVED: u8 = b'\n';

/// The interval at which a keeper looks for the process.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Acquires a lock, and prints its handle.
pub(crate) async fn acquire(global: &Global, args: &Acquire, output: &Output) -> Result<u8, Failure> {
    if let Some(pid) = args.while_pid {
        existing(pid)?;
        return start_keeper(output);
    }
    // It may read a FIFO, which a signal must end.
    let store = store::choose(global, output)?;
    let mut signals = Signals::listen().map_err(|error| internal("listen for signals", &error))?;
    let (locks, guard) = tokio::select! {
        acquired = acquired(store, args) => acquired?,
        signal = signals.next_termination() => return Ok(exit::SIGNAL + signal_number(signal)),
    };
    if !args.hold {
        return leave(&locks, guard, &mut signals, output).await;
    }
    let delivered = tokio::select! {
        delivered = deliver(line(&guard.handle()?, guard.remaining(), output), output) => delivered,
        reason = guard.lost() => return Err(Error::Lost { name: guard.name().clone(), reason }.into()),
        signal = signals.next_termination() => {
            return Ok(guard.release().await.map(|()| exit::SIGNAL + signal_number(signal))?);
        }
    };
    if let Err(failure) = delivered {
        return Err(after_release(failure, guard.release()).await);
    }
    tokio::select! {
        reason = guard.lost() => Err(Error::Lost { name: guard.name().clone(), reason }.into()),
        _ = signals.next_termination() => Ok(guard.release().await.map(|()| 0)?),
    }
}

/// Prints the handle of a hold, and leaves it without a process.
async fn leave(locks: &Locks, guard: Guard, signals: &mut Signals, output: &Output) -> Result<u8, Failure> {
    let (began, handle) = (SystemClock.now(), guard.handle()?);
    let release = || locks.release(&handle);
    let end_by = async |signal| Ok(release().await.map(|()| exit::SIGNAL + signal_number(signal))?);
    let renewed = tokio::select! {
        renewed = guard.into_handle() => renewed,
        signal = signals.next_termination() => return end_by(signal).await,
    };
    let hold = match renewed {
        Ok(hold) => hold,
        Err(error) if error.lost().is_some() => return Err(error.into()),
        Err(error) => return Err(after_release(error.into(), release()).await),
    };
    let lost = || {
        let lost = Error::Lost { name: hold.name().clone(), reason: LostReason::DeadlineReached };
        with_outcome(lost.into(), "nobody has read its handle from stdout before")
    };
    let end = began + hold.ttl();
    tokio::select! {
        delivered = deliver(line(&hold, hold.ttl(), output), output) => match delivered {
            Ok(()) if SystemClock.now() < end => Ok(0),
            Ok(()) => Err(lost()),
            Err(failure) => Err(after_release(failure, release()).await),
        },
        () = SystemClock.sleep_until(end) => Err(lost()),
        signal = signals.next_termination() => end_by(signal).await,
    }
}

/// Prints a line with a handle, on a thread of its own: a pipe that nobody reads blocks it. The end of the process does not wait for the thread.
async fn deliver(line: String, output: &Output) -> Result<(), Failure> {
    let (output, (sender, delivered)) = (*output, oneshot::channel());
    let printing = thread::Builder::new().spawn(move || sender.send(output.deliver(&line)));
    printing.map_err(|error| internal("start a thread for stdout", &error))?;
    delivered
        .await
        .unwrap_or_else(|_| Err(Failure::new(INTERNAL, "the thread for stdout has failed".to_owned())))
}

/// Renews a hold.
pub(crate) async fn renew(global: &Global, args: &Renew, output: &Output) -> Result<u8, Failure> {
    let hold = parse(&args.handle)?;
    let locks = connect(store::choose(global, output)?, None).await?;
    let guard = locks.adopt_for(&hold, args.lease.unwrap_or(hold.ttl())).await?;
    let hold = guard.into_handle().await?;
    if !output.is_text() {
        output.data(&line(&hold, hold.ttl(), output))?;
    }
    output.detail(format!(
        "lock {} is held for another {}",
        hold.name(),
        polylock::duration::format(hold.ttl())
    ));
    Ok(0)
}

/// Releases a hold.
pub(crate) async fn release(global: &Global, handle: &Handle, output: &Output) -> Result<u8, Failure> {
    let hold = parse(handle)?;
    connect(store::choose(global, output)?, None).await?.release(&hold).await?;
    Ok(0)
}

async fn acquired(store: ChosenStore, args: &Acquire) -> Result<(Locks, Guard), Failure> {
    let name = LockName::new(&args.name)?;
    let label = args.label.clone().unwrap_or_else(user::name);
    Label::new(&label)?;
    let began = SystemClock.now();
    let locks = connect(store, Some(&args.waiting)).await?;
    ensure_waits_for_others(&locks, &name, args.mode()).await?;
    let mut lock = locks.lock(&args.name).mode(args.mode()).label(label);
    if !args.hold && args.while_pid.is_none() {
        lock = lock.ttl(args.lease);
    }
    if let Some(wait) = args.waiting.limit() {
        lock = lock.wait(wait.saturating_sub(SystemClock.now().since(began)));
    }
    if let Some(outage) = args.waiting.outage_of_try() {
        lock = lock.outage(outage);
    }
    if let Some(delay) = args.waiting.delay() {
        SystemClock.sleep_until(SystemClock.now() + delay).await;
    }
    match lock.acquire().await {
        Ok(guard) => Ok((locks, guard)),
        Err(error) => {
            let code = error.is_not_acquired().then_some(args.waiting.conflict_exit_code);
            let failure = Failure::from(error);
            Err(Failure { code: code.unwrap_or(failure.code), ..failure })
        }
    }
}

/// Releases a hold whose handle could not be printed. Without it, nobody could release the lock before the end of the lease.
async fn after_release(failure: Failure, release: impl Future<Output = polylock::Result<()>>) -> Failure {
    match release.await {
        Ok(()) => with_outcome(failure, "the lock was released"),
        Err(error) => with_outcome(failure, &format!("the lock may still be held: {}", error.chain())),
    }
}

fn with_outcome(mut failure: Failure, outcome: &str) -> Failure {
    failure.message = format!("{}; {outcome}", failure.message);
    failure
}

/// Opens the store. An outage is retried, because a script that calls these commands can't do that better.
async fn connect(store: ChosenStore, limits: Option<&Waiting>) -> Result<Locks, Failure> {
    let locks = Locks::builder_from_config(store.config);
    let locks = match limits {
        Some(waiting) => waiting.limit_connect(locks),
        None => locks,
    };
    Ok(locks.connect().await?)
}

/// Returns the line with a handle.
fn line(hold: &HoldHandle, expires_in: Duration, output: &Output) -> String {
    let text = hold.to_text();
    let line = match output.is_text() {
        true => text,
        false => json!({
            "name": hold.name().as_str(),
            "handle": text,
            "mode": hold.mode().code(),
            "fencing_token": hold.fencing_token().get(),
            "expires_at_ms": u64::try_from(wall_clock::epoch_ms_in(expires_in)).unwrap_or(u64::MAX),
        })
        .to_string(),
    };
    line + "\n"
}

fn parse(Handle { handle }: &Handle) -> Result<HoldHandle, Failure> {
    let mut text = handle.clone();
    if text == "-" {
        text.clear();
        io::stdin().read_line(&mut text).map_err(|error| Failure::new(USAGE, format!("stdin: {error}")))?;
    }
    text.trim_end_matches(['\r', '\n'])
        .parse()
        .map_err(|error: InvalidHandle| Failure::new(USAGE, error.to_string()))
}

/// Returns the process with this pid.
fn existing(pid: i32) -> Result<Process, Failure> {
    let process = Pid::from_raw(pid).and_then(Process::open).filter(|process| !process.has_ended());
    process.ok_or_else(|| Failure::new(USAGE, format!("--while-pid: there is no process {pid}")))
}

fn signal_number(signal: Signal) -> u8 {
    u8::try_from(signal.as_raw()).unwrap_or(0)
}

fn internal(action: &str, error: &io::Error) -> Failure {
    Failure::new(INTERNAL, format!("can't {action}: {error}"))
}

/// Starts the keeper, passes its handle on, and leaves it in the background. Until the handle has been passed on, it ends with this process.
fn start_keeper(output: &Output) -> Result<u8, Failure> {
    let failed = |error: io::Error| internal("start the process that keeps the lock", &error);
    let mut keeper = Command::new(this_program().map_err(failed)?);
    keeper.arg(KEEPER).args(env::args_os().skip(1));
    keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut keeper = keeper.spawn().map_err(failed)?;
    // The keeper must not have this process' stderr when it stays behind: a shell may wait until that is closed.
    let errors = keeper
        .stderr
        .take()
        .map(|mut stderr| thread::spawn(move || io::copy(&mut stderr, &mut io::stderr())));
    let mut line = String::new();
    if let Some(stdout) = keeper.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    let delivered = line.ends_with('\n').then(|| output.deliver(&line));
    // If it is closed without a byte, the keeper releases the lock.
    let confirmation = keeper.stdin.take();
    if let (Some(Ok(())), Some(mut stdin)) = (&delivered, confirmation) {
        stdin.write_all(&[RECEIVED]).map_err(failed)?;
        return Ok(0);
    }
    let status = keeper.wait().map_err(failed)?;
    if let Some(errors) = errors {
        errors.join().ok();
    }
    match delivered {
        Some(Err(failure)) if status.success() => Err(with_outcome(failure, "the lock was released")),
        Some(Err(failure)) => Err(failure),
        _ => Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(INTERNAL)),
    }
}

/// Returns the exit code of a keeper, if this process is one.
pub(crate) fn keeper() -> Option<ExitCode> {
    let mut arguments = env::args_os();
    let program = arguments.next()?;
    if arguments.next()? != KEEPER {
        return None;
    }
    // It outlives the terminal, and no signal to the group of its parent reaches it.
    setsid().ok();
    let Ok(Cli { global, command: args::Command::Acquire(acquire) }) =
        Cli::try_parse_from(std::iter::once(program).chain(arguments))
    else {
        return Some(USAGE.into());
    };
    let output = Output::new(&global);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let kept = match runtime {
        Ok(runtime) => runtime.block_on(keep(&global, &acquire, &output)),
        Err(error) => Err(internal("start the runtime", &error)),
    };
    let code = kept.unwrap_or_else(|failure| {
        output.error(&failure);
        failure.code
    });
    output.finish();
    Some(code.into())
}

/// Acquires the lock, and keeps it as long as the process exists.
async fn keep(global: &Global, args: &Acquire, output: &Output) -> Result<u8, Failure> {
    let process = existing(args.while_pid.unwrap_or_default())?;
    let store = store::choose(global, output)?;
    let mut parent = parent();
    let (_locks, guard) = tokio::select! {
        acquired = acquired(store, args) => acquired?,
        _ = &mut parent => return Ok(exit::SIGNAL),
        () = ended(&process) => return Ok(0),
    };
    if let Err(failure) = output.deliver(&line(&guard.handle()?, guard.remaining(), output)) {
        return Err(after_release(failure, guard.release()).await);
    }
    let received = async {
        if parent.await == Ok(true) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = received => Ok(guard.release().await.map(|()| 0)?),
        reason = guard.lost() => Err(Error::Lost { name: guard.name().clone(), reason }.into()),
        () = ended(&process) => Ok(guard.release().await.map(|()| 0)?),
    }
}

async fn ended(process: &Process) {
    while !process.has_ended() {
        SystemClock.sleep_until(SystemClock.now() + CHECK_INTERVAL).await;
    }
}

/// Returns true when the process that has started this one has passed the handle on, and false when it has ended, which closes its end of stdin.
fn parent() -> oneshot::Receiver<bool> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || sender.send(io::stdin().read_exact(&mut [0]).is_ok()));
    receiver
}

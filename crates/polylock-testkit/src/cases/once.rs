//! Jobs that run once per period.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Error, KeepRecord, LockName, Locks, NotAcquired, Once, OnceBegin, OnceOutcome, Operation, Record,
    RecordVersion, Result, RunOutcome, Store, StoredRecord, sync::lock,
};

use super::cancel::{at_every_poll, no_fault};
use crate::{
    faults::Recording,
    need::Need,
    trial::{
        Outcome, SOON, Trial, acquired, cancel_at, join, lock_name, pass, released, soon, watched, within,
    },
};

/// A period that does not end during a case.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

fn job(locks: &Locks) -> Once {
    locks.once("n").every(LONG)
}

async fn ran<T: Debug, E: Debug>(run: impl Future<Output = Result<OnceOutcome<T, E>>>) -> OnceOutcome<T, E> {
    soon("run", run).await.unwrap_or_else(|error| panic!("run: {}", error.chain()))
}

/// Runs the job, and returns the number of its attempt; `None` if it was skipped.
async fn attempt(job: Once, outcome: std::result::Result<(), &'static str>) -> Option<u32> {
    let number = Arc::new(AtomicUsize::new(0));
    let seen = number.clone();
    let work = async move |run: polylock_core::LastRun| {
        seen.store(run.attempt.try_into().unwrap_or(usize::MAX), Ordering::SeqCst);
        outcome
    };
    match (ran(job.run(work)).await, outcome) {
        (OnceOutcome::Succeeded(()), Ok(())) => {}
        (OnceOutcome::Failed(reason), Err(expected)) => assert_eq!(reason, expected),
        (OnceOutcome::Skipped(_), _) => return None,
        (other, _) => panic!("expected {outcome:?}, got {other:?}"),
    }
    number.load(Ordering::SeqCst).try_into().ok()
}

async fn last_run(locks: &Locks) -> Option<polylock_core::LastRun> {
    let last = soon("last_run", job(locks).last_run()).await;
    last.unwrap_or_else(|error| panic!("last_run: {}", error.chain()))
}

async fn begun(job: Once) -> OnceBegin {
    soon("begin", job.begin()).await.unwrap_or_else(|error| panic!("begin: {}", error.chain()))
}

pub(super) async fn one_of_many_tasks_runs_the_job(trial: Trial) -> Outcome {
    const TASKS: usize = 12;
    let connections = [trial.recorded().await, trial.recorded().await];
    let runs = Arc::new(AtomicUsize::new(0));
    let holder = acquired(connections[0].0.lock("n")).await;
    let workers: Vec<_> = (0..TASKS)
        .map(|task| {
            let (job, runs) = (job(&connections[task % 2].0).label("nightly"), runs.clone());
            tokio::spawn(async move {
                let work = async move |run: polylock_core::LastRun| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    pass(Duration::from_millis(5)).await;
                    Ok::<_, String>(run)
                };
                ran(job.run(work)).await
            })
        })
        .collect();
    // Each task has found no record, and has to read again once it has the lock. Without a queue, some have not begun.
    if trial.lacks(Need::Order).await.is_none() {
        for (_, recording) in &connections {
            soon("the tasks wait for the lock", recording.queued(&lock_name("n"), TASKS / 2)).await;
        }
    }
    released(holder).await;
    let mut succeeded = Vec::new();
    for worker in workers {
        match join(worker).await {
            OnceOutcome::Succeeded(run) => succeeded.push(run),
            OnceOutcome::Skipped(last) => assert_eq!((last.attempt, &*last.label), (1, "nightly")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((runs.load(Ordering::SeqCst), succeeded.len()), (1, 1));
    let last = last_run(&connections[0].0).await.expect("a record of the run");
    assert!(matches!(last.outcome, RunOutcome::Succeeded { at } if at >= last.started_at), "{last:?}");
    assert_eq!((last.token, &last.owner), (succeeded[0].token, &succeeded[0].owner));
    assert!(last.period_begin <= last.started_at + Duration::from_secs(60), "{last:?}");
    assert_eq!(last.next_due, last.period_begin + LONG);
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_failed_attempt_is_repeated_as_often_as_configured(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    assert_eq!(attempt(job(&here), Err("no disk")).await, Some(1));
    // Without retries, it has had its attempt.
    assert_eq!(attempt(job(&there), Ok(())).await, None);
    match last_run(&there).await.expect("a record of the run").outcome {
        RunOutcome::Failed { reason, .. } => assert_eq!(reason, "no disk"),
        other => panic!("{other:?}"),
    }
    assert_eq!(attempt(job(&there).retries(2), Err("no disk")).await, Some(2));
    assert_eq!(attempt(job(&here).retries(2), Ok(())).await, Some(3));
    assert_eq!(attempt(job(&there).retries(9), Ok(())).await, None, "it has succeeded");
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn an_attempt_without_an_end_counts_as_failed(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let ttl = trial.renewable();
    let OnceBegin::Due(dead) = begun(job(&here).ttl(ttl)).await else { panic!("it has not run") };
    assert!(dead.guard.leave_to_expire().is_ok());
    match begun(job(&there)).await {
        OnceBegin::Skipped(last) => assert_eq!((last.attempt, last.outcome), (1, RunOutcome::Unfinished)),
        other => panic!("{other:?}"),
    }
    // Another attempt waits until the process that may have died does not hold the lock any more.
    let again = within(ttl + SOON, "the lock of a dead process", job(&there).retries(1).begin()).await;
    match again.unwrap_or_else(|error| panic!("begin: {}", error.chain())) {
        OnceBegin::Due(attempt) => {
            assert_eq!(attempt.report.run().attempt, 2);
            soon("the report", attempt.report.succeeded()).await.expect("the lock is held");
            released(attempt.guard).await;
        }
        other => panic!("{other:?}"),
    }
    // The report of the first attempt comes too late.
    let late = soon("a late report", dead.report.succeeded()).await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    assert_eq!(last_run(&here).await.map(|last| last.attempt), Some(2));
    Ok(())
}

pub(super) async fn another_process_reports_the_outcome_of_an_attempt(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let report = async |token| soon("the attempt", job(&there).report(token)).await;
    let OnceBegin::Due(first) = begun(job(&here)).await else { panic!("it has not run") };
    let token = first.report.run().token;
    let failed = report(token).await.unwrap_or_else(|error| panic!("report: {}", error.chain()));
    soon("the outcome", failed.failed("no disk")).await.expect("no later attempt");
    // A repeated report, after a lost reply, is no error and changes nothing.
    let again = report(token).await.unwrap_or_else(|error| panic!("report: {}", error.chain()));
    soon("the same outcome", again.succeeded()).await.expect("no later attempt");
    match last_run(&here).await.expect("a record of the run").outcome {
        RunOutcome::Failed { reason, .. } => assert_eq!(reason, "no disk"),
        other => panic!("{other:?}"),
    }
    released(first.guard).await;
    let OnceBegin::Due(second) = begun(job(&here).retries(1)).await else { panic!("it has failed") };
    let late = report(token).await;
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    assert_eq!(last_run(&here).await.map(|run| run.outcome), Some(RunOutcome::Unfinished));
    let second_report = report(second.report.run().token).await;
    let second_report = second_report.unwrap_or_else(|error| panic!("report: {}", error.chain()));
    soon("the outcome", second_report.succeeded()).await.expect("no later attempt");
    released(second.guard).await;
    assert_eq!(attempt(job(&here).retries(9), Ok(())).await, None, "it has succeeded");
    Ok(())
}

pub(super) async fn each_period_has_one_run(trial: Trial) -> Outcome {
    const PERIODS: usize = 3;
    let second = Duration::from_secs(1);
    let connections = [trial.locks().await, trial.locks().await];
    let (periods, runs) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..4)
        .map(|task| {
            let (locks, periods, runs) = (connections[task % 2].clone(), periods.clone(), runs.clone());
            tokio::spawn(async move {
                let is_done = || lock(&periods).len() >= PERIODS;
                while !is_done() {
                    let (periods, runs) = (periods.clone(), runs.clone());
                    let work = async move |run: polylock_core::LastRun| {
                        assert_eq!(run.next_due, run.period_begin + second);
                        lock(&periods).insert(run.period_begin);
                        runs.fetch_add(1, Ordering::SeqCst);
                        Ok::<_, String>(())
                    };
                    ran(locks.once("n").every(second).run(work)).await;
                    pass(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    for worker in workers {
        join(worker).await;
    }
    let periods = lock(&periods).clone();
    assert_eq!(runs.load(Ordering::SeqCst), periods.len(), "two runs in one period of {periods:?}");
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

/// The records of a store. At the first write, another process takes the lock, as after a pause of this one, and runs the job.
#[derive(Debug)]
struct Overtaken {
    records: Arc<dyn KeepRecord>,
    store: Store,
    recording: Arc<Recording>,
    other: Locks,
    /// True if the other process runs the job after the write, and not before.
    writes_first: bool,
    is_overtaken: AtomicBool,
}

impl Overtaken {
    async fn overtake(&self, name: &LockName) {
        let claim = self.recording.of(Operation::Claim).into_iter().next().expect("it holds the lock");
        self.store.backend.release(&claim.request).await.expect("the entry is removed, as by its expiry");
        let other = self.other.once(name).every(LONG).retries(1);
        assert!(attempt(other, Ok(())).await.is_some(), "the other process was refused");
    }
}

#[async_trait]
impl KeepRecord for Overtaken {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.records.read_record(name).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        let is_first = !self.is_overtaken.swap(true, Ordering::SeqCst);
        if is_first && !self.writes_first {
            self.overtake(name).await;
        }
        self.records.write_record(name, record, keep).await?;
        if is_first && self.writes_first {
            self.overtake(name).await;
        }
        Ok(())
    }
}

pub(super) async fn a_process_that_lost_the_lock_does_not_begin(trial: Trial) -> Outcome {
    for (name, writes_first) in [("before", false), ("after", true)] {
        let (store, recording) = watched(trial.store().await, Recording::new);
        let (is_overtaken, other) = (AtomicBool::new(false), trial.locks().await);
        let overtaken = Overtaken {
            records: store.records.clone().expect("a case with this need"),
            store: store.clone(),
            recording,
            other: other.clone(),
            writes_first,
            is_overtaken,
        };
        let here = trial.open(store.recording(Arc::new(overtaken)));
        let begun = soon("begin", here.once(name).every(LONG).begin()).await;
        assert!(matches!(begun, Err(Error::Lost { .. })), "overtaken {name} its write: {begun:?}");
        let last = soon("last_run", other.once(name).last_run()).await;
        let last = last.unwrap_or_else(|error| panic!("last_run: {}", error.chain())).expect("the other run");
        assert!(matches!(last.outcome, RunOutcome::Succeeded { .. }), "overtaken {name} its write: {last:?}");
        trial.assert_entries(0, "at the end").await;
    }
    Ok(())
}

pub(super) async fn only_a_greater_version_replaces_a_record(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = acquired(locks.lock("n")).await;
        tokens.push(guard.fencing_token());
        released(guard).await;
    }
    let records =
        [trial.store().await, trial.store().await].map(|store| store.records.expect("a case with this need"));
    let longest = "\u{e9}".repeat(Record::MAX_BYTES / 2);
    let steps: [(usize, u32, &str, &str); 8] = [
        (0, 2, "a", "a"),
        (0, 1, "late", "a"),
        (0, 2, "again", "a"),
        (0, 3, "b'\\\u{1F600}\t;\"", "b'\\\u{1F600}\t;\""),
        (1, 1, &longest, &longest),
        (0, 9, "an older token", &longest),
        (1, 1, "again, after an older one", &longest),
        (1, 2, "", ""),
    ];
    for (index, (token, revision, text, expected)) in steps.into_iter().enumerate() {
        let version = RecordVersion { token: tokens[token], revision };
        let record = Record { version, text: text.to_owned() };
        let (writer, reader) = (records[index % 2].clone(), records[(index + 1) % 2].clone());
        let stored = trial
            .on_io(async move {
                let name = lock_name("n");
                writer.write_record(&name, &record, LONG).await?;
                assert_eq!(
                    reader.read_record(&lock_name("N")).await?.record,
                    None,
                    "the record of another name"
                );
                reader.read_record(&name).await
            })
            .await;
        let record = stored.record.expect("a record was written");
        assert_eq!(record.text, expected, "after step {index}, {version:?}");
    }
    Ok(())
}

pub(super) async fn a_record_is_absent_after_its_time(trial: Trial) -> Outcome {
    let token = acquired(trial.locks().await.lock("n")).await.fencing_token();
    let records = trial.store().await.records.expect("a case with this need");
    let keep = Duration::from_millis(300);
    let record = |revision| Record { version: RecordVersion { token, revision }, text: "x".to_owned() };
    let read = async || {
        let (records, name) = (records.clone(), lock_name("n"));
        trial.on_io(async move { records.read_record(&name).await }).await
    };
    let write = async |revision: u32| {
        let (records, record, name) = (records.clone(), record(revision), lock_name("n"));
        trial.on_io(async move { records.write_record(&name, &record, keep).await }).await;
    };
    let before = read().await.now;
    write(1).await;
    let mut present = read().await;
    while present.record.is_some() {
        pass(Duration::from_millis(20)).await;
        present = read().await;
    }
    // The clock of a store has steps of a millisecond.
    assert!(present.now + Duration::from_millis(2) >= before + keep, "{present:?}, written at {before:?}");
    write(2).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn bad_settings_are_refused_before_any_io(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let day = Duration::from_secs(24 * 3600);
    let jobs = [
        ("every", job(&locks).every(Duration::from_millis(999))),
        ("every", job(&locks).every(LONG * 11)),
        ("at", job(&locks).every(day).at(day)),
        ("at", job(&locks).every(Duration::from_secs(7)).at(Duration::from_secs(1))),
    ];
    for (key, job) in jobs {
        match soon("begin", job.begin()).await {
            Err(Error::Config(error)) => assert_eq!(error.key, key),
            other => panic!("expected an error about {key}, got {other:?}"),
        }
    }
    let unnamed = soon("begin", locks.once("").begin()).await;
    assert!(matches!(unnamed, Err(Error::InvalidName(_))), "{unnamed:?}");
    assert!(recording.calls().is_empty());
    Ok(())
}

pub(super) async fn a_try_does_not_wait_for_another_process(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let holder = acquired(here.lock("n")).await;
    let busy = soon("a try", job(&there).wait(Duration::ZERO).begin()).await;
    assert!(matches!(busy, Err(Error::NotAcquired { reason: NotAcquired::Busy, .. })), "{busy:?}");
    released(holder).await;
    assert_eq!(attempt(job(&there).wait(Duration::ZERO), Ok(())).await, Some(1));
    Ok(())
}

pub(super) async fn at_every_poll_of_a_run(trial: Trial) -> Outcome {
    let (trial, locks) = (&trial, &trial.locks().await);
    at_every_poll(|at| async move {
        // An attempt that has failed, or was cancelled, is repeated in the next round.
        let job = job(locks).retries(u32::MAX);
        let run = job.run(async |_| Err::<(), _>("again"));
        let outcome = no_fault(soon("a cancelled run", cancel_at(run, at)).await);
        assert!(matches!(outcome, None | Some(OnceOutcome::Failed("again"))), "{outcome:?}");
        trial.assert_entries(0, &format!("after the cancellation at {at:?}")).await;
        outcome.is_some()
    })
    .await;
    Ok(())
}

//! Owners that wait for each other.

use std::time::Duration;

use polylock_core::{Error, Guard, Lock, Locks, OwnerId};
use tokio::task::JoinHandle;

use crate::trial::{Outcome, Trial, acquired, join, pass, released, soon, within};

const CHECK: Duration = Duration::from_millis(300);
/// The greatest time between the formation of a cycle and its report.
const REPORT: Duration = Duration::from_secs(2);

fn owners<const N: usize>() -> [OwnerId; N] {
    std::array::from_fn(|_| OwnerId::unique())
}

fn lock(locks: &Locks, name: &str, owner: &OwnerId) -> Lock {
    locks.lock(name).owner(owner).deadlock_check(CHECK)
}

/// Starts a request, and returns when it waits.
async fn waiting(
    trial: &Trial,
    locks: &Locks,
    name: &str,
    owner: &OwnerId,
) -> JoinHandle<Result<Guard, Error>> {
    let waiters = trial.status(name).await.waiters.len();
    let task = tokio::spawn(lock(locks, name, owner).acquire());
    let queued = async {
        while trial.status(name).await.waiters.len() <= waiters {
            pass(Duration::from_millis(2)).await;
        }
    };
    soon("the queue entry", queued).await;
    task
}

/// Each owner holds the lock of its own number, and waits for the next one.
async fn cycle<const N: usize>(trial: &Trial) -> Outcome {
    let owners = owners::<N>();
    let mut stores = Vec::new();
    for _ in 0..N {
        stores.push(trial.locks().await);
    }
    let mut guards = Vec::new();
    let mut waits = Vec::new();
    for (index, owner) in owners.iter().enumerate() {
        guards.push(acquired(lock(&stores[index], &index.to_string(), owner)).await);
    }
    for (index, owner) in owners.iter().enumerate() {
        waits.push(waiting(trial, &stores[index], &((index + 1) % N).to_string(), owner).await);
    }
    let youngest = waits.pop().expect("N waiters");
    let refused = within(REPORT, "the report", join(youngest)).await;
    let error = refused.expect_err("the youngest request is refused");
    let Error::Deadlock { cycle, .. } = &error else { panic!("{}", error.chain()) };
    for owner in &owners {
        assert!(cycle.contains(owner.as_str()), "{cycle}");
    }
    assert!(waits.iter().all(|wait| !wait.is_finished()), "one request is refused, the others wait");
    // The victim releases its lock, and the others are granted theirs, one after the other.
    while let Some(guard) = guards.pop() {
        released(guard).await;
        if let Some(wait) = waits.pop() {
            released(join(wait).await.unwrap_or_else(|error| panic!("{}", error.chain()))).await;
        }
    }
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn of_two_owners_refuse_the_youngest_request(trial: Trial) -> Outcome {
    cycle::<2>(&trial).await
}

pub(super) async fn of_three_owners_are_found(trial: Trial) -> Outcome {
    cycle::<3>(&trial).await
}

pub(super) async fn are_not_reported_without_a_cycle(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    // 1 holds a; 2 holds b and waits for a; 3 waits for b, and 4 for a.
    let [one, two, three, four] = owners();
    let a = acquired(lock(&locks, "a", &one)).await;
    let b = acquired(lock(&locks, "b", &two)).await;
    let waits = [
        waiting(&trial, &locks, "a", &two).await,
        waiting(&trial, &locks, "b", &three).await,
        waiting(&trial, &locks, "a", &four).await,
    ];
    pass(CHECK * 4).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()), "a request without a cycle was refused");
    let [second, third, fourth] = waits;
    released(a).await;
    released(join(second).await.expect("granted")).await;
    released(b).await;
    released(join(third).await.expect("granted")).await;
    released(join(fourth).await.expect("granted")).await;
    Ok(())
}

pub(super) async fn of_whole_processes_are_not_reported(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let plain = |name: &str| locks.lock(name).deadlock_check(CHECK);
    // The tasks of a process may release locks while others wait.
    let (a, b) = (acquired(plain("a")).await, acquired(plain("b")).await);
    let waits = [tokio::spawn(plain("a").acquire()), tokio::spawn(plain("b").acquire())];
    pass(CHECK * 4).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    released(a).await;
    released(b).await;
    for wait in waits {
        released(join(wait).await.expect("granted")).await;
    }
    Ok(())
}

pub(super) async fn of_one_owner_are_refused_at_once(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let [owner] = owners();
    let guard = acquired(lock(&locks, "n", &owner)).await;
    let refused = within(CHECK, "the refusal", lock(&locks, "n", &owner).acquire()).await;
    assert!(matches!(&refused, Err(Error::Deadlock { .. })), "{refused:?}");
    assert!(guard.is_held());
    assert!(soon("try_acquire", lock(&locks, "n", &owner).try_acquire()).await.expect("no fault").is_none());
    released(guard).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

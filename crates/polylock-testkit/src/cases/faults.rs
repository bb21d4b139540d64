//! Cases of other groups, repeated on a faulty store.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{cancel, drop, exclusion, leaks, order, wait};
use crate::{
    faults::{Flaky, Overtaking, Slow},
    trial::{Outcome, Trial},
};

fn overtaking(trial: &Trial) -> Trial {
    trial.behind(|inner| Overtaking::new(inner, Duration::from_millis(4)))
}

/// One operation in five fails, the same ones in every run on the same connection.
fn flaky(trial: &Trial) -> Trial {
    let seed = AtomicU64::new(1);
    trial.behind(move |inner| Flaky::seeded(inner, seed.fetch_add(1, Ordering::Relaxed), 20))
}

fn slow(trial: &Trial) -> Trial {
    let (each, seed) = (Duration::from_millis(6), AtomicU64::new(1));
    trial.behind(move |inner| Slow::new(inner, each, each).jitter(seed.fetch_add(1, Ordering::Relaxed)))
}

pub(super) async fn overtaking_exclusion(trial: Trial) -> Outcome {
    exclusion::contend(&overtaking(&trial), 6, 2).await;
    Ok(())
}

pub(super) async fn overtaking_cancel(trial: Trial) -> Outcome {
    let trial = overtaking(&trial);
    cancel::free_acquire(&trial).await;
    cancel::waiting_acquire(&trial).await;
    cancel::tries(&trial).await;
    cancel::releases(&trial).await;
    Ok(())
}

pub(super) async fn overtaking_waits(trial: Trial) -> Outcome {
    let trial = overtaking(&trial);
    wait::time_out(&trial, 8).await;
    wait::hand_over(&trial, 4).await;
    Ok(())
}

pub(super) async fn overtaking_drops(trial: Trial) -> Outcome {
    let trial = overtaking(&trial);
    drop::inside(&trial).await;
    drop::drop_at_the_end(&trial, drop::current_thread, 6).await;
    drop::drop_at_the_end(&trial, drop::multi_thread, 6).await;
    Ok(())
}

pub(super) async fn flaky_exclusion(trial: Trial) -> Outcome {
    exclusion::contend(&flaky(&trial), 6, 2).await;
    Ok(())
}

pub(super) async fn flaky_cancel(trial: Trial) -> Outcome {
    let trial = flaky(&trial);
    cancel::free_acquire(&trial).await;
    cancel::waiting_acquire(&trial).await;
    cancel::releases(&trial).await;
    Ok(())
}

pub(super) async fn flaky_waits(trial: Trial) -> Outcome {
    let trial = flaky(&trial);
    wait::time_out(&trial, 8).await;
    wait::hand_over(&trial, 4).await;
    Ok(())
}

pub(super) async fn flaky_leaks(trial: Trial) -> Outcome {
    leaks::cycles(&flaky(&trial), 40).await;
    Ok(())
}

pub(super) async fn slow_exclusion(trial: Trial) -> Outcome {
    exclusion::contend(&slow(&trial), 6, 2).await;
    Ok(())
}

pub(super) async fn slow_cancel(trial: Trial) -> Outcome {
    let trial = slow(&trial);
    cancel::free_acquire(&trial).await;
    cancel::waiting_acquire(&trial).await;
    cancel::tries(&trial).await;
    cancel::releases(&trial).await;
    Ok(())
}

pub(super) async fn slow_order(trial: Trial) -> Outcome {
    order::queue_up(&slow(&trial), 8).await;
    Ok(())
}

pub(super) async fn slow_drops(trial: Trial) -> Outcome {
    // Slow enough that a release without a waiter has not arrived when its thread has ended.
    let each = Duration::from_millis(30);
    let trial = trial.behind(move |inner| Slow::new(inner, each, each));
    drop::inside(&trial).await;
    drop::drop_at_the_end(&trial, drop::current_thread, 8).await;
    drop::drop_at_the_end(&trial, drop::multi_thread, 8).await;
    Ok(())
}

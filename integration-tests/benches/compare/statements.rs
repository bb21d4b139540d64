//! How many statements the servers receive: for a pair, for an acquisition that many want, and while many wait.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::{Locks, Order};
use polylock_integration_tests::clock::{now, pause, until};

use crate::{
    Flavour,
    report::{Cell, Report},
    setups::Setup,
};

const PAIRS: u32 = 200;
const TASKS: u32 = 64;
const DURATION: Duration = Duration::from_secs(3);

/// Prints the table.
pub(crate) fn run(setups: &[Setup], report: &mut Report) {
    let title = format!(
        "Statements that each server receives: transactions in PostgreSQL, statements in MariaDB, scripts and pings in Redis, packets in \
         ZooKeeper, requests in Azure; contended by {TASKS} tasks for {DURATION:?}, and while {TASKS} tasks wait"
    );
    let columns = &[
        "store",
        "durability",
        "uncontended pair",
        "contended acquisition",
        "all waiters, a second",
        "one waiter, a second",
    ];
    report.begin("statements", &title, columns);
    for setup in setups {
        let Some(counted) = Flavour::MultiThread.run(count(*setup)) else { continue };
        let (store, durability) = setup.names();
        let mut row = vec![Cell::text(store), Cell::text(durability)];
        row.extend(counted.map(|number| Cell::number(number, 2)));
        report.row(row);
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
async fn count(setup: Setup) -> Option<[f64; 4]> {
    let (_spot, url) = setup.open().await;
    let (counter, url) = setup.counter(url)?;
    let locks = Locks::connect(&url).await.unwrap();
    let pair = async |locks: &Locks| locks.lock("bench").acquire().await.unwrap().release().await.unwrap();
    pair(&locks).await;
    let before = counter.sent().await.unwrap();
    for _ in 0..PAIRS {
        pair(&locks).await;
    }
    let of_pairs = counter.sent().await.unwrap() - before;

    let (before, began) = (counter.sent().await.unwrap(), now());
    let end = began + DURATION;
    let tasks = (0..TASKS).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let mut acquired = 0;
            while now() < end {
                locks.lock("bench").acquire().await.unwrap().release().await.unwrap();
                acquired += 1;
            }
            acquired
        })
    });
    let acquired: u64 = join_all(tasks).await.into_iter().map(Result::unwrap).sum();
    let contended = counter.sent().await.unwrap() - before;
    let contended_for = now().since(began).as_secs_f64();

    let guard = locks.lock("bench").acquire().await.unwrap();
    let waiters: Vec<_> = (0..TASKS).map(|_| tokio::spawn(locks.lock("bench").acquire())).collect();
    // A store without a queue shows no waiters, or one of each client.
    if locks.capabilities().order == Order::Fifo {
        let queued =
            async || locks.inspect("bench").await.is_ok_and(|status| status.waiters.len() == TASKS as usize);
        until("they wait", queued).await;
    }
    let (before, began) = (counter.sent().await.unwrap(), now());
    pause(DURATION).await;
    let waited = counter.sent().await.unwrap() - before;
    let seconds = now().since(began).as_secs_f64();
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    guard.release().await.unwrap();
    let idle = waited as f64 / seconds;
    Some([
        of_pairs as f64 / f64::from(PAIRS),
        // Without what comes with time alone.
        idle.mul_add(-contended_for, contended as f64) / acquired.max(1) as f64,
        idle,
        idle / f64::from(TASKS),
    ])
}

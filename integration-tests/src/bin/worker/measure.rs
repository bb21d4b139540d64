//! A process of `comparison`.

use std::{collections::HashMap, time::Duration};

use polylock::{Guard, Locks};
use polylock_bench::process::input_lines;
use polylock_integration_tests::clock::{now, pause};
use tokio::{sync::oneshot, task::JoinSet};

use crate::task::{Task, print_line};

/// `measure URL`: does what the lines of its input say, as `integration-tests/peers/README.md` describes it.
pub(crate) async fn run(task: &Task) {
    let locks = task.locks().await;
    let mut lines = input_lines();
    print_line("ready");
    let (mut taken, mut kept) = (HashMap::new(), Vec::new());
    while let Some(line) = lines.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().unwrap();
        match words[..] {
            ["take", name] => {
                let (sender, dropped) = oneshot::channel::<()>();
                taken.insert(name.to_owned(), sender);
                tokio::spawn(take(locks.clone(), name.to_owned(), dropped));
                continue;
            }
            ["drop", name] => {
                taken.remove(name);
                continue;
            }
            ["loop", name, clients, ms] => {
                repeat(&locks, name, number(clients), Duration::from_millis(number(ms))).await;
            }
            ["sweep", count] => {
                for at in 0..number(count) {
                    acquire(&locks, &format!("sweep/{at}")).await.release().await.unwrap();
                }
            }
            ["many", count] => {
                for at in 0..number(count) {
                    kept.push(acquire(&locks, &format!("many/{at}")).await);
                }
            }
            _ => panic!("unknown line {line:?}"),
        }
        print_line("done");
    }
    // The test has ended.
    std::process::exit(0)
}

/// Acquires the lock. An acquisition that gives up is started again.
async fn acquire(locks: &Locks, name: &str) -> Guard {
    loop {
        match locks.lock(name).acquire().await {
            Ok(guard) => return guard,
            Err(error) if error.is_temporary() => pause(Duration::from_millis(50)).await,
            Err(error) => panic!("{name}: {}", error.chain()),
        }
    }
}

async fn take(locks: Locks, name: String, dropped: oneshot::Receiver<()>) {
    let invoked = now().as_nanos();
    let guard = acquire(&locks, &name).await;
    print_line(format_args!("held {name} {invoked} {}", now().as_nanos()));
    let is_lost = tokio::select! {
        biased;
        _ = guard.lost() => true,
        _ = dropped => false,
    };
    let begin = now().as_nanos();
    if is_lost {
        return print_line(format_args!("lost {name} {begin}"));
    }
    // A failed release is repeated in the background.
    guard.release().await.ok();
    print_line(format_args!("dropped {name} {begin} {}", now().as_nanos()));
}

/// Lets clients use the lock again and again for this time, and prints their pairs.
async fn repeat(locks: &Locks, name: &str, clients: u64, lasts: Duration) {
    let (until, mut running) = (now() + lasts, JoinSet::new());
    for client in 0..clients {
        let (locks, name) = (locks.clone(), name.to_owned());
        running.spawn(async move {
            let mut pairs = Vec::new();
            while now() < until {
                let invoked = now();
                let guard = acquire(&locks, &name).await;
                let acquired = now();
                guard.release().await.ok();
                pairs.push([invoked, acquired, now()]);
            }
            (client, pairs)
        });
    }
    while let Some(done) = running.join_next().await {
        let (client, pairs) = done.unwrap();
        for [invoked, acquired, released] in pairs.into_iter().map(|pair| pair.map(|time| time.as_nanos())) {
            print_line(format_args!("pair {client} {invoked} {acquired} {released}"));
        }
    }
}

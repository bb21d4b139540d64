//! A process of `comparison`: it does what the lines of its input say.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{Hold, Library, input_lines, now};

/// The time for which a hold is watched at a time.
const LONG: Duration = Duration::from_secs(3600);

pub(crate) async fn run(library: Library, lease: Duration) -> io::Result<()> {
    let library = Arc::new(library);
    let (mut taken, mut kept): (HashMap<String, oneshot::Sender<()>>, Vec<Hold>) = Default::default();
    let mut lines = input_lines();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().expect("a number");
        match words[..] {
            ["take", name] => {
                let (drop, dropped) = oneshot::channel();
                taken.insert(name.to_owned(), drop);
                tokio::spawn(take(library.clone(), name.to_owned(), lease, dropped));
                continue;
            }
            ["drop", name] => {
                taken.remove(name);
                continue;
            }
            ["loop", name, clients, ms] => {
                let until = now() + number(ms) * 1_000_000;
                let running: Vec<_> = (0..number(clients))
                    .map(|_| tokio::spawn(pairs(library.clone(), name.to_owned(), lease, until)))
                    .collect();
                for (client, pairs) in running.into_iter().enumerate() {
                    for [invoked, acquired, released] in pairs.await.expect("no task panics") {
                        println!("pair {client} {invoked} {acquired} {released}");
                    }
                }
            }
            ["sweep", count] => {
                for at in 0..number(count) {
                    library.acquire(&format!("sweep/{at}"), lease).await.0.release().await;
                }
            }
            ["many", count] => {
                for at in 0..number(count) {
                    kept.push(library.acquire(&format!("many/{at}"), lease).await.0);
                }
            }
            _ => panic!("unknown line {line:?}"),
        }
        println!("done");
    }
    std::process::exit(0)
}

async fn take(library: Arc<Library>, name: String, lease: Duration, dropped: oneshot::Receiver<()>) {
    let invoked = now();
    let (hold, _) = library.acquire(&name, lease).await;
    println!("held {name} {invoked} {}", now());
    let is_lost = tokio::select! {
        biased;
        is_lost = hold.is_lost_within(LONG) => is_lost,
        _ = dropped => false,
    };
    let begin = now();
    if is_lost {
        println!("lost {name} {begin}");
    }
    hold.release().await;
    if !is_lost {
        println!("dropped {name} {begin} {}", now());
    }
}

async fn pairs(library: Arc<Library>, name: String, lease: Duration, until: u64) -> Vec<[u64; 3]> {
    let mut found = Vec::new();
    while now() < until {
        let invoked = now();
        let (hold, _) = library.acquire(&name, lease).await;
        let acquired = now();
        hold.release().await;
        found.push([invoked, acquired, now()]);
    }
    found
}

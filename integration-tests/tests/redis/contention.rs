//! Many at once, with and without faults; and what is left when they have gone.

use std::{sync::Arc, time::Duration};

use polylock_integration_tests::{
    clock::{self, now, pause},
    history,
    proxy::{BOTH, End, Flow, Proxy, Way},
    servers::redis,
};
use polylock_testkit::history::{Rules, check};
use tokio::sync::Semaphore;

use crate::{
    Spot, command,
    load::{Load, Outcome},
};

/// Sixty-four contenders on eight connections.
fn crowd() -> Load {
    Load { stores: 8, tasks: 8, lasts: Duration::from_secs(3), more_than: 500, ..Load::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_killed_all_the_time_harm_nobody() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let outcome = crowd()
        .run(&spot.url, async {
            let (until, mut killed) = (now() + Duration::from_secs(3), 0);
            while now() < until {
                killed += spot.ask::<u64>(&command("CLIENT KILL TYPE pubsub")).await;
                pause(Duration::from_millis(50)).await;
            }
            println!("{killed} connections killed");
            assert!(killed > 100, "only {killed} connections were killed");
        })
        .await;
    println!("{} sections, {} failures, {} losses", outcome.sections.len(), outcome.failures, outcome.losses);
    assert_eq!(check(&outcome.sections, Rules::default()), []);
    // A broken connection is no loss, and no failure: another one goes on.
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    assert!(outcome.sections.len() > 500, "it went on");
    spot.is_clean().await;
}

/// Everything that a network can do, in turn and at once.
#[tokio::test(flavor = "multi_thread")]
async fn through_a_network_that_does_its_worst() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let proxy = Proxy::to(server.port());
    let load = Load { stores: 4, names: 2, lasts: Duration::from_secs(5), more_than: 200, ..Load::default() };
    let url = format!("{}&polylock.ttl=1s&polylock.command_timeout=100ms", proxy.url(&spot.url));
    let outcome = load
        .run(&url, async {
            let until = now() + Duration::from_secs(5);
            for fault in (0..7).cycle() {
                match fault {
                    0 => drop(proxy.cut(End::Reset)),
                    1 => proxy.cut_reply_to("EVALSHA"),
                    // Commands that come late, after others of the same client on another connection ...
                    2 | 5 => proxy.set_earlier(Way::ToServer, Flow::Hold),
                    // ... answers and news too, or never.
                    3 => proxy.set_earlier(Way::ToClient, Flow::Hold),
                    4 => BOTH.into_iter().for_each(|way| proxy.set_earlier(way, Flow::Swallow)),
                    6 => proxy.set_both(Flow::Delay(Duration::from_millis(5))),
                    _ => unreachable!("there are seven"),
                }
                pause(Duration::from_millis(if fault % 2 == 0 { 150 } else { 30 })).await;
                if now() > until {
                    break;
                }
                proxy.set_both(Flow::Pass);
                pause(Duration::from_millis(20)).await;
            }
            proxy.set_both(Flow::Pass);
        })
        .await;
    let Outcome { sections, failures, losses } = &outcome;
    println!("{} sections, {failures} failures, {losses} losses, {:?}", sections.len(), proxy.counts());
    assert_eq!(check(sections, Rules::default()), []);
    assert!(sections.len() > 200 && proxy.counts().cut_replies > 2, "it went on");
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_sixty_four_contenders_an_acquisition_costs_a_constant_number_of_commands() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let outcome = Load { names: 1, readers: false, ..crowd() }.run(&spot.url, async {}).await;
    assert_eq!(check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    let (scripts, acquisitions) = (spot.scripts_run().await, outcome.sections.len());
    let each = f64::from(u32::try_from(scripts).unwrap()) / f64::from(u32::try_from(acquisitions).unwrap());
    println!(
        "{scripts} scripts for {acquisitions} acquisitions: {each:.2} each; {}",
        history::Flow::of(&outcome.sections)
    );
    assert!(acquisitions > 500 && each <= 3.0, "{each:.2}");
    let flow = history::Flow::of(&outcome.sections);
    // In turn: those who came first when it began and when it ended have one more.
    assert!(flow.shares.1 - flow.shares.0 <= 3, "{flow}");
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_locks_nothing_is_left() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let locks = spot.locks().await;
    let at_once = Arc::new(Semaphore::new(64));
    let mut tasks = Vec::new();
    for name in 0..10_000 {
        let (locks, at_once) = (locks.clone(), at_once.clone());
        tasks.push(tokio::spawn(async move {
            let _one = at_once.acquire().await.unwrap();
            let guard = locks.lock(format!("name-{name}")).acquire().await.unwrap();
            // Some are dropped, which releases them in the background.
            if name % 2 == 0 {
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    spot.is_clean().await;
    // And for a moment the notes of claims that may be delivered late.
    clock::until("only the last number is left", async || spot.ask::<u64>(&command("DBSIZE")).await == 1)
        .await;
    let keys: Vec<String> = spot.ask(command("KEYS").arg("*")).await;
    assert_eq!(keys, [spot.key("last")]);
}

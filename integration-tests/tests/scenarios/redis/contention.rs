//! Contention, with and without faults, and the keys that remain afterwards.

use std::{sync::Arc, time::Duration};

use polylock_bench::Summary;
use polylock_integration_tests::{
    clock::{self, now, pause},
    load::{Load, Outcome},
    proxy::{BOTH, Direction, End, Flow, Proxy},
    servers::redis,
};
use polylock_testkit::history::{Rules, check};
use tokio::sync::Semaphore;

use super::{Namespace, command};

/// Sixty-four contenders on eight connections.
fn contention_load() -> Load {
    Load { stores: 8, tasks: 8, duration: Duration::from_secs(3), min_holds: 500, ..Load::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatedly_killed_connections_break_no_guarantee() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let outcome = contention_load()
        .run(&namespace.url, async {
            let (until, mut killed) = (now() + Duration::from_secs(3), 0);
            // A busy machine is given more time.
            let latest = until + Duration::from_secs(6);
            while now() < until || killed <= 100 && now() < latest {
                killed += namespace.query::<u64>(&command("CLIENT KILL TYPE pubsub")).await;
                pause(Duration::from_millis(50)).await;
            }
            println!("{killed} connections killed");
            assert!(killed > 100, "only {killed} connections were killed");
        })
        .await;
    println!("{} sections, {} failures, {} losses", outcome.sections.len(), outcome.failures, outcome.losses);
    assert_eq!(check(&outcome.sections, Rules::default()), []);
    // A broken connection causes no loss and no failure: the operations continue on a new one.
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    assert!(outcome.sections.len() > 500, "it went on");
    namespace.assert_clean().await;
}

/// All network faults, in turn and combined.
#[tokio::test(flavor = "multi_thread")]
async fn network_faults_break_no_guarantee() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let proxy = Proxy::to(server.port());
    let load =
        Load { stores: 4, names: 2, duration: Duration::from_secs(5), min_holds: 200, ..Load::default() };
    let url = format!("{}&polylock.ttl=1s&polylock.operation_timeout=100ms", proxy.url(&namespace.url));
    let outcome = load
        .run(&url, async {
            let until = now() + Duration::from_secs(5);
            let latest = until + Duration::from_secs(10);
            for fault in (0..7).cycle() {
                match fault {
                    0 => drop(proxy.cut(End::Reset)),
                    1 => proxy.reset_before_reply_to("EVALSHA"),
                    // Commands are executed late, after others of the same client on another connection ...
                    2 | 5 => proxy.set_existing(Direction::ToServer, Flow::Hold),
                    // ... and replies and notifications arrive late, or never.
                    3 => proxy.set_existing(Direction::ToClient, Flow::Hold),
                    4 => BOTH.into_iter().for_each(|way| proxy.set_existing(way, Flow::Drop)),
                    6 => proxy.set_both(Flow::Delay(Duration::from_millis(5))),
                    _ => unreachable!("there are seven"),
                }
                pause(Duration::from_millis(if fault % 2 == 0 { 150 } else { 30 })).await;
                // A busy machine is given more time for the resets.
                if now() > until && proxy.counts().resets_before_reply > 2 || now() > latest {
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
    assert!(sections.len() > 200 && proxy.counts().resets_before_reply > 2, "it went on");
    namespace.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_costs_a_constant_number_of_commands() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let outcome = Load { names: 1, readers: false, ..contention_load() }.run(&namespace.url, async {}).await;
    assert_eq!(check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    let (scripts, acquisitions) = (namespace.script_count().await, outcome.sections.len());
    let each = f64::from(u32::try_from(scripts).unwrap()) / f64::from(u32::try_from(acquisitions).unwrap());
    println!(
        "{scripts} scripts for {acquisitions} acquisitions: {each:.2} each; {}",
        Summary::of(&outcome.sections)
    );
    assert!(acquisitions > 500 && each <= 3.0, "{each:.2}");
    let flow = Summary::of(&outcome.sections);
    // Grants are in turn: only the first clients of the first and the last round have one more. A thread that a busy machine delays misses
    // some rounds. In random order the range would be larger.
    let (least, most) = flow.share_range();
    assert!(most - least <= 3 + most / 4, "{flow}");
    namespace.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_locks_leave_no_key() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = namespace.locks().await;
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
    namespace.assert_clean().await;
    // The records of claims that may be delivered late remain for a short time.
    clock::until("only the last number is left", async || {
        namespace.query::<u64>(&command("DBSIZE")).await == 1
    })
    .await;
    let keys: Vec<String> = namespace.query(command("KEYS").arg("*")).await;
    assert_eq!(keys, [namespace.key("last")]);
}

//! Many at once, with and without faults; and what is left when they have gone.

use std::{sync::Arc, time::Duration};

use polylock_integration_tests::{
    clock::{now, pause},
    history::Flow,
    servers::redis,
};
use polylock_testkit::history::{self, Rules};
use tokio::sync::Semaphore;

use crate::{Spot, command, load::Load};

/// Sixty-four contenders on eight connections.
fn crowd() -> Load {
    Load { stores: 8, tasks: 8, lasts: Duration::from_secs(3), ..Load::default() }
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
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    // A broken connection is no loss, and no failure: another one goes on.
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    assert!(outcome.sections.len() > 500, "it went on");
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_sixty_four_contenders_an_acquisition_costs_a_constant_number_of_commands() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let outcome = Load { names: 1, readers: false, ..crowd() }.run(&spot.url, async {}).await;
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    let (scripts, acquisitions) = (spot.scripts_run().await, outcome.sections.len());
    let each = f64::from(u32::try_from(scripts).unwrap()) / f64::from(u32::try_from(acquisitions).unwrap());
    println!(
        "{scripts} scripts for {acquisitions} acquisitions: {each:.2} each; {}",
        Flow::of(&outcome.sections)
    );
    assert!(acquisitions > 500 && each <= 3.0, "{each:.2}");
    let flow = Flow::of(&outcome.sections);
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
    assert_eq!(spot.ask::<u64>(&command("DBSIZE")).await, 1, "the last number");
    let keys: Vec<String> = spot.ask(command("KEYS").arg("*")).await;
    assert_eq!(keys, [spot.key("last")]);
}

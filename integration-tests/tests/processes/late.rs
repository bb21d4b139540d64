//! Messages of four processes that arrive late, twice or out of order change nothing that was confirmed, on every store with a server. The
//! program `late` runs thousands of such schedules.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use polylock_integration_tests::late::{
    check::Kind,
    planted::Plant,
    run::Run,
    site::{STORES, Servers},
};
use polylock_testkit::Missing;

use super::WORKER;

macro_rules! stores {
    ($($store:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $store() {
            assert!(STORES.contains(&stringify!($store)));
            late_messages_change_nothing(stringify!($store)).await;
        })*
    };
}

stores! {
    redis postgres mariadb redlock3 zookeeper azure http_redis http_postgres both_redis_postgres sqlite
}

/// Returns a run of a few schedules, each on its own connections. The seed is the same each time; the program `late` draws one.
fn run(schedules: u32) -> Run {
    Run {
        worker: WORKER.into(),
        seed: 1,
        first: 0,
        schedules,
        lanes: usize::try_from(schedules).unwrap(),
        limit: Duration::from_secs(60),
        script: None,
        is_short: true,
        planted: None,
    }
}

/// Starts the servers; returns nothing if they are not installed.
fn servers(store: &str) -> Option<Servers> {
    match Servers::start(store) {
        Ok(servers) => Some(servers),
        Err(Missing(why)) => {
            let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
            assert!(!required, "{store} is required by POLYLOCK_TEST_REQUIRE and missing: {why}");
            eprintln!("missing: {store}: {why}");
            None
        }
    }
}

async fn late_messages_change_nothing(store: &str) {
    let Some(servers) = servers(store) else { return };
    let run = run(40);
    let has_messages = !servers.upstreams.is_empty();
    let outcome = run.on(servers).await.unwrap();
    println!("{store}: seed {}: {outcome}", run.seed);
    let found: Vec<String> =
        outcome.found.iter().map(|(number, violation)| format!("schedule {number}: {violation}")).collect();
    assert!(found.is_empty(), "seed {}: {}\n{:#?}", run.seed, found.join("\n"), outcome.histories);
    assert!(outcome.withheld > 20 || !has_messages, "{outcome}");
}

/// Each check finds a bug that is planted for it: in a schedule that shows it, because few of those that are drawn do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_bugs_are_found() {
    let planted = Plant::ALL.map(|plant| async move {
        let run = Run { planted: Some(plant), script: Some(plant.script()), ..run(1) };
        let outcome = run.on(servers("sqlite")?).await.unwrap();
        let kinds: BTreeSet<Kind> = outcome.found.iter().map(|(_, violation)| violation.kind).collect();
        assert!(
            plant.kind().is_some_and(|kind| kinds.contains(&kind)),
            "{} is not found: {outcome}",
            plant.name()
        );
        Some(())
    });
    join_all(planted).await;
}

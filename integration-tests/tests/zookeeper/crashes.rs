//! Servers of an ensemble that die under load.

use std::time::Duration;

use polylock_integration_tests::{clock::pause, servers::zookeeper};
use polylock_testkit::history::{self, Rules};
use tokio::task::block_in_place;

use crate::{Spot, load::Load};

/// The leader is killed twice, and comes back as a follower.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_under_load_gives_no_lock_twice() {
    let ensemble = zookeeper::ensemble(3, &[]).unwrap();
    let spot = Spot::of(&ensemble);
    let load = Load {
        lasts: Duration::from_secs(10),
        more_than: 200,
        wait: Duration::from_secs(30),
        ..Load::default()
    };
    let outcome = load
        .run(&spot.with(Duration::from_secs(4)), async {
            for _ in 0..2 {
                pause(Duration::from_secs(2)).await;
                let leader = block_in_place(|| ensemble.leader());
                block_in_place(|| ensemble.members()[leader].kill());
                pause(Duration::from_secs(1)).await;
                block_in_place(|| ensemble.members()[leader].restart());
            }
        })
        .await;
    println!("{} sections, {} failures, {} losses", outcome.sections.len(), outcome.failures, outcome.losses);
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 200, "it went on: {}", outcome.sections.len());
    spot.is_clean().await;
}

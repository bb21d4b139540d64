//! Crashes of an ensemble's servers under load.

use std::time::Duration;

use polylock_integration_tests::{clock::pause, load::Load, servers::zookeeper};
use polylock_testkit::history::{self, Rules};
use tokio::task::block_in_place;

use super::Namespace;

/// The leader is killed twice, and restarted as a follower.
#[tokio::test(flavor = "multi_thread")]
async fn killing_the_leader_under_load_violates_no_exclusion() {
    let ensemble = zookeeper::ensemble(3, &[]).unwrap();
    let namespace = Namespace::of(&ensemble);
    let load = Load {
        duration: Duration::from_secs(10),
        min_holds: 200,
        wait: Duration::from_secs(30),
        ..Load::default()
    };
    let outcome = load
        .run(&namespace.url_with_session(Duration::from_secs(4)), async {
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
    assert!(outcome.sections.len() > 200, "too few sections: {}", outcome.sections.len());
    namespace.wait_until_empty().await;
}

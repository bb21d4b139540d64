//! A fleet that moves from one store to another, one process after the other, with killed and stopped processes.

use polylock_integration_tests::{
    migration::Fleet,
    stores::{is_available, namespace},
    targets::Namespace,
};

use crate::WORKER;

/// The sections for which two adjacent steps run together, after each process that is moved.
const SECTIONS: usize = 150;

/// The same in the daily run: 10,000 sections in all.
const MANY_SECTIONS: usize = 850;

/// The old store and the new one; none without a server.
async fn stores() -> Option<[Namespace; 2]> {
    is_available("redis").await.then_some(())?;
    Some([namespace("sqlite_normal").await, namespace("redis").await])
}

/// Moves a fleet to the new store and back, with the transitional store in between.
async fn move_there_and_back(sections: usize, seed: u64) {
    let Some([old, new]) = stores().await else { return };
    let both = format!("both:{};{}", old.url(), new.url());
    let outcome = tokio::task::block_in_place(|| {
        let mut fleet = Fleet::start(WORKER, old.url(), seed);
        for (from, to) in [(old.url(), &*both), (&both, new.url()), (new.url(), &both), (&both, old.url())] {
            fleet.migrate(from, to, sections);
        }
        fleet.finish()
    });
    println!("{} sections, {} kills, {} stops", outcome.sections, outcome.kills, outcome.stops);
    assert!(outcome.sections >= 12 * sections && outcome.kills >= 8 && outcome.stops > 0, "{outcome:?}");
    assert_eq!((outcome.violations, outcome.errors), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_moves_to_another_store_and_back_without_an_overlap() {
    move_there_and_back(SECTIONS, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_moves_in_ten_thousand_sections_without_an_overlap() {
    move_there_and_back(MANY_SECTIONS, 2).await;
}

/// The counterexample: without the step in between, the halves of the fleet do not exclude each other, and the check finds that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_moves_at_once_overlaps() {
    let Some([old, new]) = stores().await else { return };
    let outcome = tokio::task::block_in_place(|| {
        let mut fleet = Fleet::start(WORKER, old.url(), 3);
        fleet.migrate(old.url(), new.url(), SECTIONS);
        fleet.finish()
    });
    println!("{} sections, {} overlaps", outcome.sections, outcome.overlaps());
    assert!(outcome.overlaps() > 0);
}

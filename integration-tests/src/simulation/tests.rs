//! The simulation itself: a seed reproduces its run, the sound store breaks no promise, and each planted bug is found.

use std::time::Duration;

use clap::ValueEnum;
use polylock_core::{Clock, SystemClock};

use super::{
    plan::{Plan, Planted},
    timeline, world,
};

#[test]
fn a_seed_reproduces_its_run() {
    for seed in 0..20 {
        let plan = Plan::draw(seed, None);
        let [first, second] = [0, 1].map(|_| world::run(&plan, true).unwrap());
        let [a, b] = [&first, &second].map(|outcome| outcome.timeline.iter().map(ToString::to_string));
        for (a, b) in a.zip(b) {
            assert_eq!(a, b, "seed {seed}");
        }
        assert_eq!(timeline::hash(&first.timeline), timeline::hash(&second.timeline), "seed {seed}");
    }
}

#[test]
fn the_sound_store_breaks_no_promise() {
    let (end, mut sections) = (SystemClock.now() + Duration::from_secs(10), 0);
    for seed in fastrand::u64(..).. {
        let outcome = world::run(&Plan::draw(seed, None), false).unwrap();
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
        sections += outcome.sections;
        if SystemClock.now() >= end {
            break;
        }
    }
    assert!(sections > 1000, "{sections}");
}

/// The longest search for a planted bug.
const LONGEST: Duration = Duration::from_secs(60);

#[test]
fn each_planted_bug_is_found_from_random_seeds() {
    for planted in Planted::value_variants() {
        let began = SystemClock.now();
        let first = fastrand::u64(..);
        let found =
            (first..).map(|seed| (seed, world::run(&Plan::draw(seed, Some(*planted)), false).unwrap()));
        let mut found = found.take_while(|_| SystemClock.now().since(began) < LONGEST);
        let Some((seed, outcome)) = found.find(|(_, outcome)| !outcome.violations.is_empty()) else {
            panic!("{planted:?} was not found from seed {first} on");
        };
        println!(
            "{planted:?}: seed {seed}, {} runs, {:.1?}: {}",
            seed - first + 1,
            SystemClock.now().since(began),
            outcome.violations[0]
        );
    }
}

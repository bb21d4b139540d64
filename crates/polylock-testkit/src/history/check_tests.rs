//! Tests the checks with clean histories, and with one planted fault each.

use super::*;
use proptest::prelude::*;

/// Generates `count` sections over three locks: holds one after the other, or together if their modes allow it.
fn clean(count: usize, seed: u64, modes: &[Mode]) -> Vec<Section> {
    let mut random = crate::random::Random::new(seed);
    let mut sections = Vec::new();
    for (lock, name) in ["a", "b", "c d"].into_iter().enumerate() {
        let (mut now, mut token, mut in_lock) = (1_000_000, 0, 0);
        while in_lock < count / 3 + usize::from(lock < count % 3) {
            // A batch of up to four holds that may overlap; the next batch begins when all have ended.
            let mode = modes[usize::try_from(random.below(modes.len() as u64)).unwrap()];
            let batch = if mode.conflicts_with(mode) { 1 } else { 1 + random.below(4) };
            let granted = now;
            for _ in 0..batch {
                token += 1 + random.below(3);
                let acquired = granted + random.below(50);
                let invoked = acquired - random.below(900) - 1;
                let released = acquired + 1 + random.below(100);
                let client = format!("client-{}", random.below(64));
                let mut section = Section::new(name, client, mode, invoked..acquired)
                    .token(token)
                    .deadline(acquired + 500)
                    .released(released);
                section.polled = Some(released - 1);
                sections.push(section);
                now = now.max(released);
                in_lock += 1;
            }
            // With this gap, some requests of the next batch are invoked after the end of this batch.
            now += random.below(20);
        }
    }
    // The tokens of a batch are assigned in order, but may reach their clients in any order.
    sections
}

fn kinds(found: &[Violation]) -> Vec<std::mem::Discriminant<Violation>> {
    found.iter().map(std::mem::discriminant).collect()
}

proptest! {
    #[test]
    fn a_clean_history_is_clean(seed: u64, count in 1_usize..200) {
        let exclusive = clean(count, seed, &[Mode::Exclusive]);
        prop_assert_eq!(check(&exclusive, Rules::default()), []);
        let mixed = clean(count, seed, &[Mode::Shared, Mode::Exclusive, Mode::ProtectedWrite]);
        prop_assert_eq!(overlaps(&mixed), []);
        prop_assert_eq!(repeated_tokens(&mixed), []);
    }

    /// The sweeps find a fault if and only if a comparison of every pair does.
    #[test]
    fn the_sweeps_agree_with_the_definition(
        raw in prop::collection::vec(
            (0_u64..40, 0_u64..20, 0_u64..20, 0_u64..30, prop::option::of(0_u64..40), 0_usize..6, 0_u8..2), 0..14),
    ) {
        let sections: Vec<Section> = raw.into_iter().map(|(invoked, to_ok, held, token, queued, mode, lock)| {
            let acquired = invoked + to_ok;
            let mut section = Section::new(if lock == 0 { "a" } else { "b" }, "c", Mode::ALL[mode], invoked..acquired)
                .token(token).released(acquired + held);
            section.queued = queued;
            section
        }).collect();
        let pairs = || sections.iter().enumerate().flat_map(|(at, a)| {
            sections.iter().enumerate().filter(move |(other, b)| *other != at && a.lock == b.lock)
                .map(move |(_, b)| (a, b))
        });
        let overlap = pairs().any(|(a, b)| a.mode.conflicts_with(b.mode)
            && a.acquired.max(b.acquired) < a.end().min(b.end()));
        prop_assert_eq!(!overlaps(&sections).is_empty(), overlap);
        let regression = pairs().any(|(a, b)| b.token <= a.token
            && (a.acquired < b.invoked
                || a.mode.conflicts_with(b.mode) && a.acquired < b.acquired && was_held(b)));
        prop_assert_eq!(!token_regressions(&sections).is_empty(), regression);
        let repeated = pairs().any(|(a, b)| a.token == b.token);
        prop_assert_eq!(!repeated_tokens(&sections).is_empty(), repeated);
        let inverted = pairs().any(|(a, b)| a.mode.conflicts_with(b.mode) && was_held(a)
            && a.queued.is_some_and(|queued| queued < b.invoked) && b.acquired < a.acquired);
        prop_assert_eq!(!inversions(&sections).is_empty(), inverted);
    }

    #[test]
    fn a_planted_overlap_is_found(seed: u64, count in 2_usize..200, at: prop::sample::Index) {
        let mut history = clean(count, seed, &[Mode::Exclusive]);
        let victim = history[at.index(count)].clone();
        let mut intruder = Section::new(victim.lock.clone(), "intruder", Mode::Exclusive, 0..victim.acquired)
            .deadline(u64::MAX).released(victim.end());
        history.push(intruder.clone());
        prop_assert_eq!(overlaps(&history).len(), 1);
        intruder.mode = Mode::Null;
        history.pop();
        history.push(intruder);
        prop_assert_eq!(overlaps(&history), []);
    }

    #[test]
    fn planted_tokens_are_found(seed: u64, count in 2_usize..200, at: prop::sample::Index) {
        let mut history = clean(count, seed, &[Mode::Exclusive]);
        let victim = history[at.index(count)].clone();
        let end = history.iter().map(|s| s.acquired).max().unwrap_or(0) + 10;
        let late = Section::new(victim.lock.clone(), "late", Mode::Exclusive, end..end + 1).released(end + 2);
        let highest = history.iter().filter(|s| s.lock == victim.lock).filter_map(|s| s.token).max();
        let mut repeated = late.clone();
        repeated.token = highest;
        history.push(repeated);
        prop_assert_eq!(token_regressions(&history).len(), 1);
        prop_assert_eq!(repeated_tokens(&history).len(), 1);
        history.pop();
        history.push(late.token(0));
        prop_assert_eq!(token_regressions(&history).len(), 1);
        prop_assert_eq!(repeated_tokens(&history), []);
    }
}

#[test]
fn equal_moments_prove_no_order() {
    let first = Section::new("a", "1", Mode::Shared, 0..10).token(5).released(20);
    let second = Section::new("a", "2", Mode::Shared, 10..20).token(4).released(30);
    assert_eq!(token_regressions(&[first, second]), []);
}

#[test]
fn conflicting_holds_prove_their_order_even_if_invoked_at_the_same_time() {
    let first = Section::new("a", "1", Mode::Exclusive, 0..10).token(5).released(20);
    let second = Section::new("a", "2", Mode::Exclusive, 0..20).token(4).released(30);
    let history = [first, second];
    assert_eq!(token_regressions(&history).len(), 1);
    assert_eq!(overlaps(&history), [], "the end is not part of the hold");
}

#[test]
fn a_lease_that_ended_before_its_client_received_it_proves_no_order() {
    let first = Section::new("a", "1", Mode::Exclusive, 10..20).token(5).released(30);
    let mut second = Section::new("a", "2", Mode::Exclusive, 0..40).token(4).deadline(40);
    (second.lost, second.queued) = (Some(41), Some(5));
    let late = [first.clone(), second.clone()];
    assert_eq!((token_regressions(&late), inversions(&late)), (vec![], vec![]));
    (second.deadline, second.lost) = (50, Some(50));
    let held = [first.clone(), second.clone()];
    assert_eq!((token_regressions(&held).len(), inversions(&held).len()), (1, 1));
    // A request that begins after another one had the lock gets a greater token in any case.
    (second.deadline, second.invoked) = (40, 21);
    assert_eq!(token_regressions(&[first, second]).len(), 1);
}

#[test]
fn a_grant_at_the_same_time_hides_no_smaller_token() {
    let section = |acquiring, token, mode| Section::new("n", "c", mode, acquiring).token(token);
    let first = section(0..17, 2, Mode::Shared);
    let hides = section(32..35, 24, Mode::Shared);
    let smaller = section(17..35, 1, Mode::Exclusive);
    assert_eq!(token_regressions(&[first, hides, smaller]).len(), 1);
}

#[test]
fn a_hold_that_outlives_its_deadline_is_found() {
    let base = Section::new("a", "1", Mode::Exclusive, 0..10).deadline(1_000);
    let rules = Rules { tolerance: Duration::from_nanos(50) };
    let with = |change: fn(&mut Section)| {
        let mut section = base.clone();
        change(&mut section);
        late_losses(&[section], rules)
    };
    assert_eq!(with(|s| s.released = Some(1_050)), []);
    assert_eq!(with(|s| s.lost = Some(1_050)), []);
    assert_eq!(with(|s| s.open = true), [], "a client that died reports nothing");
    assert_eq!(with(|s| (s.released, s.polled) = (Some(900), Some(899))), []);
    let late = kinds(&[Violation::LateLoss { section: Box::new(base.clone()) }]);
    assert_eq!(kinds(&with(|s| s.lost = Some(1_051))), late);
    assert_eq!(kinds(&with(|_| ())), late);
    let polled = kinds(&[Violation::LatePoll { section: Box::new(base.clone()) }]);
    assert_eq!(kinds(&with(|s| (s.lost, s.polled) = (Some(1_010), Some(1_000)))), polled);
    assert_eq!(kinds(&with(|s| (s.lost, s.polled) = (Some(700), Some(701)))), polled);
}

#[test]
fn a_killed_process_holds_nothing() {
    let mut dead = Section::new("a", "1", Mode::Exclusive, 0..10).token(1).deadline(1_000);
    dead.open = true;
    let next = Section::new("a", "2", Mode::Exclusive, 0..50).token(2).released(60);
    let mut history = [dead, next];
    assert_eq!(overlaps(&history).len(), 1);
    end_at_kills(&mut history, |section| (section.client == "1").then_some(40));
    assert_eq!(check(&history, Rules::default()), []);
}

#[test]
fn an_overtaken_waiter_is_found_unless_the_modes_are_compatible() {
    let mut waiter = Section::new("a", "1", Mode::Exclusive, 0..100).released(110);
    waiter.queued = Some(10);
    let overtaker = |mode| Section::new("a", "2", mode, 20..50).released(60);
    assert_eq!(inversions(&[waiter.clone(), overtaker(Mode::Shared)]).len(), 1);
    assert_eq!(inversions(&[waiter.clone(), overtaker(Mode::Null)]), []);
    waiter.queued = Some(20);
    assert_eq!(inversions(&[waiter, overtaker(Mode::Shared)]), []);
}

#[test]
fn a_fault_is_found_in_a_hundred_thousand_sections() {
    let mut history = clean(100_000, 7, &[Mode::Exclusive]);
    let victim = &history[60_000];
    let bad =
        Section::new(&*victim.lock, "intruder", Mode::Exclusive, 0..victim.acquired).released(victim.end());
    history.push(bad.token(1));
    // A check that compares every pair would exceed the time limit of a test.
    let found = check(&history, Rules::default());
    assert_eq!(found.iter().filter(|v| matches!(v, Violation::Overlap { .. })).count(), 1);
}

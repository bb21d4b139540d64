//! Planted bugs in rules and scripts: the schedules detect each by its consequence.

use super::{
    Rules, SOUND,
    node::{Change, Script},
    run,
};

/// Checks that the schedules detect broken rules by their consequence.
fn assert_detected(what: &str, clients: usize, rules: Rules) {
    assert_detected_from(0, what, clients, rules);
}

/// The same from a seed shortly before the first that detects them. If the schedules change, the next one is as far away as from any other.
fn assert_detected_from(first: u64, what: &str, clients: usize, rules: Rules) {
    let outcome = run(3, clients, first..first + 20_000, rules, what);
    println!("{outcome:?}");
    assert_ne!(outcome.violation, None, "not found");
}

#[test]
fn planted_votes_that_are_not_withdrawn_are_detected() {
    assert_detected("left behind", 2, Rules { withdraws: false, ..SOUND });
}

#[test]
fn planted_a_withdrawal_of_the_live_number_is_detected() {
    assert_detected("overlap", 2, Rules { reads_number_late: true, ..SOUND });
}

#[test]
fn planted_a_false_confirmation_is_detected() {
    assert_detected("released too early", 2, Rules { confirms_for_others: true, ..SOUND });
}

#[test]
fn planted_an_unrecorded_restored_vote_is_detected() {
    assert_detected_from(3700, "left behind", 2, Rules { forgets: 3, forgets_restored: true, ..SOUND });
}

#[test]
fn planted_servers_that_forget_and_vote_at_once_are_detected() {
    assert_detected("overlap", 2, Rules { forgets: 1, trusts: true, ..SOUND });
}

#[test]
fn planted_clients_that_ignore_the_membership_are_detected() {
    assert_detected("overlap", 2, Rules { forgets: 1, ignores_membership: true, ..SOUND });
}

#[test]
fn planted_a_server_that_is_confirmed_at_once_is_detected() {
    const CHANGES: &[Change] = &[Change {
        script: Script::Membership,
        from: "state, nonce, age = 'new', fresh, 0",
        to: "state, nonce, age = 'confirmed', fresh, 0",
    }];
    assert_detected("overlap", 2, Rules { forgets: 1, changes: CHANGES, ..SOUND });
}

#[test]
fn planted_a_release_that_accepts_late_proposals_is_detected() {
    assert_detected(
        "left behind",
        2,
        Rules {
            changes: &[Change { script: Script::Release, from: "accept(number + 1, keep)", to: "" }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_release_without_a_comparison_is_detected() {
    assert_detected(
        "overlap",
        2,
        Rules {
            changes: &[Change { script: Script::Release, from: "= is_of(id) and", to: "= value and" }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_late_release_that_removes_a_later_vote_is_detected() {
    assert_detected(
        "overlap",
        2,
        Rules {
            changes: &[Change {
                script: Script::Release,
                from: "(number == 0 or entry[1] <= number)",
                to: "true",
            }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_vote_that_keeps_its_withdrawn_number_is_detected() {
    const CHANGES: &[Change] = &[Change {
        script: Script::Propose,
        from: "cmsgpack.pack({number, now, ARGV[9]",
        to: "cmsgpack.pack({is_of(id) and entry[1] or number, now, ARGV[9]",
    }];
    assert_detected("overlap", 2, Rules { changes: CHANGES, ..SOUND });
}

#[test]
fn planted_a_renewal_after_the_release_is_detected() {
    assert_detected(
        "left behind",
        2,
        Rules {
            changes: &[Change { script: Script::KeepAlive, from: " and last <= number", to: "" }],
            ..SOUND
        },
    );
}

#[test]
fn planted_an_extended_marked_vote_is_detected() {
    const CHANGES: &[Change] =
        &[Change { script: Script::KeepAlive, from: "if entry[5] then", to: "if false then" }];
    assert_detected("extended after the break", 2, Rules { breaks: 5, changes: CHANGES, ..SOUND });
}

#[test]
fn planted_an_accepted_smaller_number_is_detected() {
    assert_detected_from(
        1500,
        "token",
        3,
        Rules {
            changes: &[Change {
                script: Script::Propose,
                from: "if number <= last then",
                to: "if false then",
            }],
            ..SOUND
        },
    );
}

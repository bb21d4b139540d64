//! Rules and scripts that are broken on purpose: the schedules find each by its consequence.

use super::{
    Rules, SOUND,
    node::{Change, Script},
    run,
};

/// Broken rules are found, each by its consequence.
fn is_found(what: &str, clients: usize, rules: Rules) {
    let outcome = run(3, clients, 4000, rules, what);
    println!("{outcome:?}");
    assert_ne!(outcome.wrong, None, "not found");
}

#[test]
fn planted_votes_that_are_not_withdrawn_are_found() {
    is_found("left behind", 2, Rules { withdraws: false, ..SOUND });
}

#[test]
fn planted_a_withdrawal_of_the_live_number_is_found() {
    is_found("overlap", 2, Rules { reads_number_late: true, ..SOUND });
}

#[test]
fn planted_a_false_confirmation_is_found() {
    is_found("released too early", 2, Rules { confirms_for_others: true, ..SOUND });
}

#[test]
fn planted_a_restored_vote_that_is_forgotten_at_the_release_is_found() {
    is_found("left behind", 2, Rules { forgets: 3, forgets_restored: true, ..SOUND });
}

#[test]
fn planted_servers_that_forget_and_vote_at_once_are_found() {
    is_found("overlap", 2, Rules { forgets: 1, trusts: true, ..SOUND });
}

#[test]
fn planted_clients_that_ignore_the_membership_are_found() {
    is_found("overlap", 2, Rules { forgets: 1, ignores_membership: true, ..SOUND });
}

#[test]
fn planted_a_server_that_is_confirmed_at_once_is_found() {
    const CHANGES: &[Change] = &[Change {
        script: Script::Membership,
        from: "state, was_durable, nonce, age = 'new', durable, fresh, 0",
        to: "state, was_durable, nonce, age = 'confirmed', durable, fresh, 0",
    }];
    is_found("overlap", 2, Rules { forgets: 1, changes: CHANGES, ..SOUND });
}

#[test]
fn planted_a_release_that_lets_late_proposals_in_is_found() {
    is_found(
        "left behind",
        2,
        Rules {
            changes: &[Change { script: Script::Release, from: "accept(number + 1, keep)", to: "" }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_release_without_comparing_is_found() {
    is_found(
        "overlap",
        2,
        Rules {
            changes: &[Change { script: Script::Release, from: "= is_of(id) and", to: "= value and" }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_late_release_that_takes_a_later_proposal_is_found() {
    is_found(
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
fn planted_a_vote_that_keeps_its_withdrawn_number_is_found() {
    const CHANGES: &[Change] = &[Change {
        script: Script::Propose,
        from: "cmsgpack.pack({number, now, ARGV[9]",
        to: "cmsgpack.pack({is_of(id) and entry[1] or number, now, ARGV[9]",
    }];
    is_found("overlap", 2, Rules { changes: CHANGES, ..SOUND });
}

#[test]
fn planted_a_renewal_after_the_release_is_found() {
    is_found(
        "left behind",
        2,
        Rules {
            changes: &[Change { script: Script::KeepAlive, from: " and last <= number", to: "" }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_marked_vote_that_is_extended_is_found() {
    const CHANGES: &[Change] =
        &[Change { script: Script::KeepAlive, from: "if entry[5] then", to: "if false then" }];
    is_found("extended after the break", 2, Rules { breaks: 5, changes: CHANGES, ..SOUND });
}

#[test]
fn planted_a_number_that_is_not_greater_and_accepted_is_found() {
    is_found(
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

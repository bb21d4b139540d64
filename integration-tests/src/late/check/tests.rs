use std::collections::BTreeSet;

use super::*;
use crate::late::{acts::Role, history::Event, message::Reply};

const NAME: &str = "latename00000001";

/// Returns an operation that takes 10 ns.
fn event(role: Role, invoked: u64, action: Action, outcome: Outcome) -> Event {
    Event { role, action, reply: Reply { id: 0, invoked, returned: invoked + 10, outcome } }
}

fn acquired(role: Role, guard: &str, shared: bool, invoked: u64, token: u64) -> Event {
    let ttl = Some(Duration::from_secs(1));
    let (name, owner, guard) = (NAME.to_owned(), guard.to_owned(), guard.to_owned());
    let action = Action::Acquire { name, owner, shared, ttl, wait: None, guard };
    event(role, invoked, action, Outcome::Held { token, shared, deadline: 1_000_000_000 })
}

fn shown(invoked: u64, owner: &str, token: u64) -> Event {
    let (owner, token, expires_in) = (owner.to_owned(), Some(token), Duration::from_millis(999));
    let entry = Shown { owner, token, expires_in, broken: false };
    event(Role::Breaker, invoked, Action::Look { name: NAME.to_owned() }, Outcome::Shown(vec![entry]))
}

fn broken(invoked: u64, token: u64, tokens: &[u64]) -> Event {
    let (name, reason) = (NAME.to_owned(), "b1".to_owned());
    event(
        Role::Breaker,
        invoked,
        Action::Break { name, token, force: true, reason },
        Outcome::Broken(tokens.to_vec()),
    )
}

fn kinds(events: Vec<Event>) -> BTreeSet<Kind> {
    let settled = Duration::from_secs(8);
    let bounds = Bounds { settled, undone: Duration::ZERO, shows_last_grant: false };
    check(&History { events, ..History::default() }, bounds).iter().map(|violation| violation.kind).collect()
}

/// Both stores show the tokens of their own, and the token of a shared hold is greater than these.
#[test]
fn a_break_by_a_token_of_one_of_two_stores_ends_a_shared_hold() {
    let events = |token| {
        vec![
            acquired(Role::Holder, "h1", true, 0, 9),
            shown(100, "h1", 7),
            broken(200, token, &[token]),
            acquired(Role::Next, "n1", false, 300, 11),
        ]
    };
    assert_eq!(kinds(events(7)), BTreeSet::new());
    assert_eq!(kinds(events(6)), BTreeSet::from([Kind::Overlap]), "another hold was broken");
}

/// A break names a token that the hold had before a conversion.
#[test]
fn a_break_by_an_earlier_token_ends_nothing() {
    let events = vec![
        acquired(Role::Holder, "h1", true, 0, 7),
        event(
            Role::Holder,
            100,
            Action::Upgrade { guard: "h1".to_owned(), wait: Duration::ZERO },
            Outcome::Held { token: 9, shared: false, deadline: 1_000_000_000 },
        ),
        broken(200, 7, &[]),
        acquired(Role::Next, "n1", false, 300, 11),
    ];
    assert_eq!(kinds(events), BTreeSet::from([Kind::Overlap]));
}

//! Bugs of the tower layer.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "tower: a stale token passes",
        file: "crates/polylock-tower/src/memory.rs",
        from: "token < *current",
        to: "token > *current",
        test: ("fencing", "a_smaller_token_gets_412_and_is_not_handled"),
    },
    Mutant {
        name: "tower: requests of one resource are handled at the same time",
        file: "crates/polylock-tower/src/layer.rs",
        from: "let response = inner.call(Request::from_parts(parts, body)).await;",
        to: "drop(permit);\n            let permit = ();\n            let response = inner.call(Request::from_parts(parts, body)).await;",
        test: ("fencing", "a_greater_token_waits_for_the_request_that_is_being_handled"),
    },
    Mutant {
        name: "tower: a full store forgets a token",
        file: "crates/polylock-tower/src/memory.rs",
        from: "return Err(Full { capacity: self.capacity });",
        to: "entries.clear();",
        test: ("fencing", "a_full_store_refuses_further_resources_and_forgets_no_token"),
    },
    Mutant {
        name: "tower: a request without a token passes",
        file: "crates/polylock-tower/src/layer.rs",
        from: "(None, _) if !self.is_required =>",
        to: "(None, _) if self.is_required =>",
        test: ("fencing", "a_request_without_a_valid_token_is_refused"),
    },
];

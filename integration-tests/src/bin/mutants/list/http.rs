//! Bugs of the lock service and its store.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "http: the server carries out claims that have expired",
        file: "crates/polylock-server/src/operations.rs",
        from: "if body.expires.has_passed(service.clock.now()) {",
        to: "if body.expires.us < 0 {",
        test: ("processes", "service::sqlite_full::a_claim_in_a_stopped_server_takes_no_lock_for_nobody"),
    },
    Mutant {
        name: "http: a claim follows the release of its request",
        file: "crates/polylock-server/src/turns.rs",
        from: "*turn.0 = true;",
        to: "*turn.0 = false;",
        test: (
            "units of library polylock_server",
            "turns::tests::operations_of_a_request_take_turns_and_no_claim_follows_a_release",
        ),
    },
    Mutant {
        name: "http: a waiter without a client is kept",
        file: "crates/polylock-server/src/waiters.rs",
        from: "until < now",
        to: "until > now",
        test: ("units of library polylock_server", "waiters::tests::a_waiter_without_a_client_is_dropped"),
    },
    Mutant {
        name: "http: the lock of a stream ends with its server",
        file: "crates/polylock-server/src/service.rs",
        from: ".holds_outlive_process()",
        to: "",
        test: ("cli", "serve::the_lock_of_a_stream_outlives_its_server_until_the_end_of_the_lease"),
    },
    Mutant {
        name: "http: web pages use the locks",
        file: "crates/polylock-server/src/serve.rs",
        from: "contains_key(header::ORIGIN)",
        to: "contains_key(header::DNT)",
        test: ("cli", "serve::requests_of_web_pages_and_invalid_ones_are_refused"),
    },
    Mutant {
        name: "http: the client uses one server",
        file: "crates/polylock-http/src/servers.rs",
        from: "let others = self.servers.all.len().saturating_sub(self.step);",
        to: "let others = 1_usize.saturating_sub(self.step);",
        test: ("processes", "service::sqlite_full::a_client_continues_on_another_server"),
    },
    Mutant {
        name: "http: a hold ends with the server that has claimed it",
        file: "crates/polylock-protocol/src/operations.rs",
        from: "request.outlives_process = true;",
        to: "request.outlives_process = false;",
        test: ("processes", "service::sqlite_full::a_client_continues_on_another_server"),
    },
];

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

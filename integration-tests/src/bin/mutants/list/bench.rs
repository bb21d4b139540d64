//! Bugs of the benchmark.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "benchmark: the page has the address of another server",
        file: "crates/polylock-bench/src/html/plot.rs",
        from: "Ok(svg?.replace(\" xmlns=\\\"http://www.w3.org/2000/svg\\\"\", \"\"))",
        to: "svg",
        test: ("units of library polylock_bench", "html::tests::a_page_loads_nothing_and_escapes_all_text"),
    },
    Mutant {
        name: "benchmark: a lock that was granted before its holder was killed counts as free at once",
        file: "crates/polylock-bench/src/kill.rs",
        from: "if *granted < killed {",
        to: "if false {",
        test: ("units of library polylock_bench", "kill::tests::a_grant_before_the_kill_is_a_violation"),
    },
    Mutant {
        name: "benchmark: a history with two holders has numbers",
        file: "crates/polylock-bench/src/summary.rs",
        from: "Some(violation) => Err(violation.into()),",
        to: "Some(_) => Ok(Self::of(sections)),",
        test: (
            "units of library polylock_bench",
            "summary::tests::a_history_with_two_holders_has_no_numbers",
        ),
    },
    Mutant {
        name: "benchmark: the table of the raw driver is left behind",
        file: "crates/polylock-bench/src/subject.rs",
        from: "lock(&self.with_raw).push(namespace.clone());",
        to: "",
        test: ("cli", "bench::a_benchmark_that_is_ended_leaves_nothing_and_prints_what_was_measured"),
    },
    Mutant {
        name: "benchmark and check: an opening goes on after the deletion of its namespace",
        file: "crates/polylock-bench/src/opened.rs",
        from: "let shared = self.opening.clone().read_owned().await;",
        to: "let shared = self.opening.clone();",
        test: (
            "units of library polylock_bench",
            "opened::tests::an_opening_without_a_caller_ends_before_the_namespaces_are_deleted",
        ),
    },
];

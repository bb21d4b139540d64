//! Bugs of elections.

use super::Mutant;

const ELECTION: &str = "crates/polylock-core/src/election.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "election: the work continues after a loss",
        file: ELECTION,
        from: "            let outcome = guard.run(async {",
        to: "            async fn unprotected<F: Future>(guard: Guard, work: F) -> Result<F::Output> {
                let output = work.await;
                drop(guard);
                Ok(output)
            }
            let outcome = unprotected(guard, async {",
        test: ("processes", "election::queues::sqlite_full::the_work_of_two_leaders_never_overlaps"),
    },
    Mutant {
        name: "election: a loss ends the election",
        file: ELECTION,
        from: "                Ok(None) | Err(_) => {}",
        to: "                Ok(None) => {}
                Err(error) => return Err(error),",
        test: ("conformance", "memory::election::a_lost_term_is_followed_by_another_one"),
    },
    Mutant {
        name: "election: a resignation has no effect",
        file: "crates/polylock-core/src/election/term.rs",
        from: "self.resignation.send_replace(true);",
        to: "self.resignation.send_replace(false);",
        test: ("conformance", "memory::election::a_resignation_gives_the_next_candidate_a_turn"),
    },
    Mutant {
        name: "election: a resignation in the last poll of the work is ignored",
        file: ELECTION,
        from: "has_returned = !term.has_resigned();",
        to: "has_returned = true;",
        test: ("election", "a_resignation_in_the_last_poll_of_the_work_counts"),
    },
    Mutant {
        name: "election: an outage ends the wait of a candidate",
        file: ELECTION,
        from: ".wait(Duration::MAX).outage(Duration::MAX)",
        to: ".wait(Duration::MAX)",
        test: ("election", "a_candidate_waits_for_the_store_and_for_the_leader_without_a_limit"),
    },
    Mutant {
        name: "election: without a queue, a former leader campaigns before the others",
        file: ELECTION,
        from: "if has_queue { Duration::ZERO } else { WITHOUT_QUEUE }",
        to: "if has_queue { Duration::ZERO } else { Duration::ZERO }",
        test: ("election", "without_a_queue_a_leader_that_resigns_lets_the_others_try_first"),
    },
    Mutant {
        name: "election: an observer shows the last leader during an outage",
        file: "crates/polylock-core/src/election/observe.rs",
        from: "if let Some(outage) = &state.outage {",
        to: "if let Some(outage) = state.outage.as_ref().filter(|_| false) {",
        test: ("election", "an_observer_sees_each_leader_and_an_outage"),
    },
    Mutant {
        name: "election: the command line ends with a loss",
        file: "crates/polylock-cli/src/run/restart.rs",
        from: "            \"lost\" => Next::Campaign",
        to: "            \"lost\" if verdict.code == 0 => Next::Campaign",
        test: ("cli", "elect::a_leader_that_loses_the_lock_stops_the_command_and_campaigns_again"),
    },
    Mutant {
        name: "election: a signal to the command line does not end the election",
        file: "crates/polylock-cli/src/run/supervise.rs",
        from: "if signals::is_termination(signal) && !self.received.contains(&signal) {",
        to: "if false && signals::is_termination(signal) && !self.received.contains(&signal) {",
        test: ("cli", "elect::a_signal_ends_polylock_although_the_command_is_to_be_restarted"),
    },
];

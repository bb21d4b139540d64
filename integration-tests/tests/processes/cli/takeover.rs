//! The command of the next holder starts after all processes of the previous command have ended, with every kind of process and every
//! fault of the previous polylock.

use std::{sync::LazyLock, time::Duration};

use polylock_integration_tests::{
    cargo::polylock,
    takeover::{Fault, IdleProcesses, Outcome, Programs, Trial},
};

const TTL: Duration = Duration::from_secs(4);

static PROGRAMS: LazyLock<Programs> = LazyLock::new(|| Programs {
    polylock: polylock().to_owned(),
    takeover: env!("CARGO_BIN_EXE_takeover").into(),
});

/// Runs `script` under the lock with this lease, and lets another run acquire the lock after each of these faults.
async fn after(ttl: Duration, faults: &[Fault], script: &str) {
    for fault in faults {
        let trial = Trial::start(&PROGRAMS, ttl, *fault, script).await;
        let Outcome { gap, code } = trial.finish().await;
        println!("{fault:?}: {gap:.1} ms, code {code:?}");
        assert!(gap > 0.0, "{fault:?}: both commands were alive for {:.1} ms", -gap);
        match fault {
            Fault::Kill => assert_eq!(code, None),
            Fault::Stop | Fault::Break => assert_eq!(code, Some(79), "{fault:?}"),
            Fault::MaxHold => assert_eq!(code, Some(124)),
        }
    }
}

/// Makes a script ignore the signals that request it to stop.
const IGNORE_SIGNALS: &str = "trap '' TERM HUP; ";

async fn after_all_faults(script: &str) {
    after(TTL, &Fault::ALL, &format!("{IGNORE_SIGNALS}{script}")).await;
}

#[tokio::test]
async fn the_command_itself() {
    after_all_faults("exec \"$T\" beat life").await;
}

#[tokio::test]
async fn a_child_in_the_background() {
    after_all_faults("\"$T\" beat life & wait").await;
}

#[tokio::test]
async fn a_child_under_nohup() {
    after_all_faults("nohup \"$T\" beat life & wait").await;
}

#[tokio::test]
async fn a_child_in_a_session_of_its_own() {
    after_all_faults("setsid \"$T\" beat life & wait").await;
}

#[tokio::test]
async fn a_grandchild_in_a_session_of_its_own() {
    after_all_faults("setsid sh -c '\"$T\" beat life & wait' & wait").await;
}

/// The parent of each of the two forks ends.
#[tokio::test]
async fn a_daemon_that_forks_twice() {
    after_all_faults("(setsid sh -c '\"$T\" beat life &' &); sleep 60").await;
}

#[tokio::test]
async fn a_daemon_by_setsid_f() {
    after_all_faults("setsid -f setsid -f \"$T\" beat life; sleep 60").await;
}

/// The command has ended when its polylock searches for the remaining processes.
#[tokio::test]
async fn a_daemon_that_is_started_when_the_command_gets_the_signal() {
    let script = "trap 'setsid -f \"$T\" beat life; exit 0' TERM; echo > ready; while :; do sleep 0.01; done";
    // The daemon has a quarter of the lease to start.
    after(2 * TTL, &[Fault::Break, Fault::MaxHold], script).await;
}

/// The short form of the measurement of the program `takeover`.
#[tokio::test]
async fn on_a_machine_with_thousands_of_processes() {
    let idle = IdleProcesses::start(4000).unwrap();
    for _ in 0..8 {
        after(TTL, &[Fault::Stop], "trap '' TERM; exec \"$T\" beat life").await;
    }
    drop(idle);
}

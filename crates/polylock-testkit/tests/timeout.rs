//! The timeout of the steps of a case is set in the environment.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{env, process::Command, sync::Arc};

use polylock_core::{Operation, Result, Store, memory};
use polylock_testkit::{
    Target, TargetFactory, check,
    faults::{Gate, Side, wrap},
};

const KEY: &str = "POLYLOCK_TESTKIT_TIMEOUT";

/// A store that never answers a claim.
struct Silent;

#[async_trait::async_trait]
impl Target for Silent {
    async fn connect(&self) -> Result<Store> {
        Ok(wrap(memory::connect(), |inner| {
            let gate = Arc::new(Gate::new(inner));
            gate.shut(Operation::Claim, Side::Request);
            gate
        }))
    }
}

fn failure() -> String {
    check("wait::a_wait_of_zero_tries_once", &TargetFactory::new(|| async { Silent })).unwrap_err().message
}

/// Runs this test with another timeout, and returns its output.
fn run_with(timeout: &str) -> (bool, String) {
    let test = ["--exact", "a_step_has_the_timeout_of_the_environment", "--nocapture"];
    let output = Command::new(env::current_exe().unwrap()).args(test).env(KEY, timeout).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_step_has_the_timeout_of_the_environment() {
    if env::var_os(KEY).is_some() {
        println!("failure: {}", failure());
        return;
    }
    for (timeout, message) in [
        ("1", "failure: acquire: no result within 1s\n"),
        ("2", "failure: acquire: no result within 2s\n"),
        ("soon", "failure: POLYLOCK_TESTKIT_TIMEOUT=soon: invalid digit found in string\n"),
    ] {
        let (succeeded, output) = run_with(timeout);
        assert!(succeeded && output.contains(message), "{timeout}: {output}");
    }
}

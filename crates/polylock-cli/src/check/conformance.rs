//! The conformance suite, in a child process.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use polylock::{Clock, Store, StoreConfig, SystemClock};
use polylock_bench::process::print_line as print;
use polylock_testkit::{CASES, Target, TargetFactory, Verdict};
use serde::{Deserialize, Serialize};

use super::{
    process::{Job, start},
    report::{Outcome, Row},
    subject::Subject,
};
use crate::{exit::Failure, output::Output};

const PART: &str = "conformance";
/// The number of cases that run at the same time.
const LANES: usize = 4;
/// The time without a result after which the suite counts as hung: longer than the limit of a case.
const SILENCE: Duration = Duration::from_secs(300);
/// The groups that `--quick` runs.
const QUICK: [&str; 7] = ["exclusion", "order", "fencing", "names", "inspect", "release", "idempotence"];

/// The result of a case, a line of the child's output.
#[derive(Debug, Serialize, Deserialize)]
struct CaseResult {
    case: String,
    outcome: CaseOutcome,
}

#[derive(Debug, Serialize, Deserialize)]
enum CaseOutcome {
    Passed,
    Skipped(String),
    Failed(String),
}

/// Runs the suite.
pub(super) async fn rows(subject: &Subject, quick: bool, output: &Output) -> Result<Vec<Row>, Failure> {
    let is_wanted =
        |case: &&&str| !quick || QUICK.iter().any(|group| case.starts_with(&format!("{group}::")));
    let cases = CASES.iter().filter(is_wanted);
    // The child creates no tables: a server goes on with the statements of a client that was killed, and the namespaces may be deleted before.
    let prepared = stream::iter(cases).map(|case| async {
        let namespace = subject.namespaces.create();
        subject.prepare(&namespace).await.map(|()| ((*case).to_owned(), namespace))
    });
    let cases: Vec<_> = prepared.buffered(LANES).try_collect().await?;
    let mut missing: Vec<String> = cases.iter().map(|(case, _)| case.clone()).collect();
    let (mut passed, mut skipped, mut rows) = (0, Vec::<(String, Vec<String>)>::new(), Vec::new());
    let mut worker = start(&Job::Suite { cases })?;
    while let Some(line) = worker.next_line(SystemClock.now() + SILENCE).await {
        let Ok(CaseResult { case, outcome }) = serde_json::from_str(&line) else { continue };
        missing.retain(|other| *other != case);
        match outcome {
            CaseOutcome::Passed => passed += 1,
            CaseOutcome::Skipped(reason) => match skipped.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, cases)) => cases.push(case),
                None => skipped.push((reason, vec![case])),
            },
            CaseOutcome::Failed(message) => rows.push(Row::new(PART, case, Outcome::Failure, message)),
        }
        output.detail(format!("conformance: {} cases left", missing.len()));
    }
    if passed > 0 {
        rows.insert(0, Row::ok(PART, "passed", format!("{passed} cases")));
    }
    rows.extend(skipped.into_iter().map(|(reason, cases)| {
        let names = Some(cases.join(", "));
        Row { advice: names, ..Row::skipped(PART, format!("{} cases", cases.len()), reason) }
    }));
    if !missing.is_empty() {
        let value = format!("the suite ended without a result of: {}", missing.join(", "));
        rows.push(Row::new(PART, "suite", Outcome::Failure, value));
    }
    Ok(rows)
}

struct Namespace(Arc<dyn StoreConfig>);

#[async_trait]
impl Target for Namespace {
    async fn connect(&self) -> polylock::Result<Store> {
        self.0.open().await
    }
}

/// Runs these cases, each in its namespace, and writes their results.
pub(super) fn run(subject: &Subject, cases: Vec<(String, String)>) {
    let cases = Mutex::new(cases.into_iter());
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let next = cases.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((case, namespace)) = next else { break };
                    let config = subject.config_of_case(&namespace);
                    let factory = TargetFactory::new(move || {
                        let config = config.clone();
                        async move { Namespace(config) }
                    });
                    let outcome = match polylock_testkit::check(&case, &factory) {
                        Ok(Verdict::Passed) => CaseOutcome::Passed,
                        Ok(Verdict::Unsupported(reason) | Verdict::Missing(reason)) => {
                            CaseOutcome::Skipped(reason)
                        }
                        Err(failure) => CaseOutcome::Failed(failure.message),
                    };
                    print(serde_json::to_string(&CaseResult { case, outcome }).unwrap_or_default());
                }
            });
        }
    });
}

//! Runs one case against one target: a runtime of its own, a time limit, a verdict.

use std::{
    any::Any,
    fmt,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use crate::{
    Maker, cases,
    target::Missing,
    trial::{Trial, scaled},
};

/// How a case ended, if it did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The promise is kept.
    Passed,
    /// The store's capabilities do not promise it, or there is no way to see.
    Unsupported(String),
    /// The store is not there: see [`Missing`].
    Missing(String),
}

/// A case that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which case.
    pub case: String,
    /// What it saw.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.message)
    }
}

impl std::error::Error for Failure {}

/// How long it may take to make a target: a server may have to be started.
const MAKING: Duration = Duration::from_secs(120);

/// Runs the case `name` of [`CASES`](crate::CASES) and blocks until it has ended; within its time limit in any case.
///
/// # Errors
/// [`Failure`] if the promise is broken, the case hangs, or there is no such case.
///
/// ```
/// use polylock_core::{Result, Store, memory};
/// use polylock_testkit::{Maker, Target, Verdict, check};
///
/// struct Memory(String);
///
/// #[async_trait::async_trait]
/// impl Target for Memory {
///     async fn connect(&self) -> Result<Store> {
///         Ok(memory::named(&self.0))
///     }
/// }
///
/// let verdict = check("wait::zero_tries_once", &Maker::new(|| async { Memory("doc".into()) }));
/// assert_eq!(verdict, Ok(Verdict::Passed));
/// ```
pub fn check(name: &str, maker: &Maker) -> Result<Verdict, Failure> {
    let failure = |message: String| Failure { case: name.to_owned(), message };
    let Some(case) = cases::TABLE.iter().find(|case| case.name == name) else {
        return Err(failure("there is no such case".to_owned()));
    };
    let (news, heard) = mpsc::channel();
    let maker = maker.clone();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| run_here(case, &maker, &news)));
        news.send(News::Ended(outcome.map_err(|panic| message(&*panic)))).ok();
    });
    if let Err(error) = thread {
        return Err(failure(format!("no thread to run it on: {error}")));
    }
    let mut limit = MAKING;
    loop {
        match heard.recv_timeout(limit) {
            Ok(News::Limit(told)) => limit = told,
            Ok(News::Ended(outcome)) => return outcome.map_err(failure),
            Err(RecvTimeoutError::Timeout) => return Err(failure(format!("hangs: no end within {limit:?}"))),
            Err(RecvTimeoutError::Disconnected) => return Err(failure("ended without a verdict".to_owned())),
        }
    }
}

/// What the thread of a case tells.
enum News {
    /// It may take so long from now on.
    Limit(Duration),
    /// It has ended, or panicked.
    Ended(Result<Verdict, String>),
}

fn run_here(case: &cases::Case, maker: &Maker, news: &mpsc::Sender<News>) -> Verdict {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    let verdict = runtime.block_on(async {
        let target = match maker.make().await {
            Ok(target) => target,
            Err(Missing(why)) => return Verdict::Missing(why),
        };
        let limit = scaled(target.time_limit());
        news.send(News::Limit(limit)).ok();
        let trial = Trial::new(target.clone()).await;
        news.send(News::Limit(limit + 40 * trial.short())).ok();
        for need in case.needs {
            if let Some(lack) = trial.lacks(*need).await {
                return Verdict::Unsupported(lack);
            }
        }
        // On a worker of the runtime, as a user's tasks are.
        match tokio::spawn((case.run)(trial)).await {
            Ok(Ok(())) => {
                let logged = target.errors_logged().await;
                assert!(logged.is_empty(), "the server has logged errors:\n{}", logged.join("\n"));
                Verdict::Passed
            }
            Ok(Err(unsupported)) => Verdict::Unsupported(unsupported.0),
            Err(cut) => match cut.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(cut) => panic!("the case was cut off: {cut}"),
            },
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    verdict
}

/// Runs a case as a test: what [`conformance!`](crate::conformance) calls.
///
/// Prints what is unsupported or missing to the standard error stream, past the test harness, so that it shows.
///
/// # Panics
/// If the case fails, or the store is missing and `POLYLOCK_TEST_REQUIRE` says `all`.
#[doc(hidden)]
pub fn test(target: &str, case: &str, maker: &Maker) {
    let say = |what: &str, why: &str| {
        writeln!(std::io::stderr(), "{what}: {target} {case}: {why}").ok();
    };
    match check(case, maker) {
        Ok(Verdict::Passed) => {}
        Ok(Verdict::Unsupported(why)) => say("unsupported", &why),
        Ok(Verdict::Missing(why)) => {
            let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
            assert!(!required, "{target} is required and missing: {why}");
            say("missing", &why);
        }
        Err(failure) => panic!("{target} {failure}"),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

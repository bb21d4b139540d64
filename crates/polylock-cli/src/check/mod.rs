//! `polylock check`: does the store of an operator keep its promises?
//!
//! Each part runs in namespaces of its own, which are deleted at the end. The conformance suite and the clients of the part with faults
//! run in child processes, so that they can be stopped and killed, and so that nothing uses a namespace any more when it is deleted.

mod clock;
mod configuration;
mod conformance;
mod faults;
mod html;
mod latency;
mod process;
mod report;
mod settings;
mod subject;
mod worker;

use std::time::Duration;

use polylock::{Clock, SystemClock};

pub(crate) use self::worker::main as worker;
use self::{
    report::{Outcome, Report, Row},
    subject::Subject,
};
use crate::{
    args::{Check, Global, Part},
    exit::{Failure, INTERNAL},
    output::{Output, PageFile, capture_warnings, milliseconds},
    signals::{self, Signals},
};

/// The exit code if a promise is broken.
const BROKEN: u8 = 1;
/// The time limit for the end of a store's background work, after which its warnings are read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the deletion of the namespaces.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Checks the store, and prints the report.
pub(crate) async fn check(global: &Global, args: &Check, output: &Output) -> Result<u8, Failure> {
    let begin = SystemClock.now();
    // A file that can't be written is reported before the check.
    let page = args.html.as_deref().map(PageFile::open).transpose()?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..u64::from(u32::MAX)));
    let subject = Subject::choose(global, output)?;
    let cannot = |error| Failure::new(INTERNAL, format!("can't listen for signals: {error}"));
    let mut signals = Signals::listen().map_err(cannot)?;
    capture_warnings();
    let mut report = Report::new(subject.configuration.display_name.clone(), seed);
    let ended = tokio::select! {
        biased;
        signal = signals.next_termination() => Err(signal),
        result = run(&subject, args, seed, output, &mut report) => Ok(result),
    };
    output.detail("deleting the namespaces of the check");
    report.rows.extend(clean_up(&subject, &mut signals).await);
    report.duration_ms = milliseconds(SystemClock.now().since(begin));
    match ended {
        Ok(Err(failure)) => {
            // The report says nothing about the store, except for what could not be deleted.
            let opened = !report.backend.is_empty();
            let left = report.rows.iter().filter(|row| opened && row.outcome == Outcome::Failure);
            left.for_each(|row| output.alert(&row.value));
            return Err(failure);
        }
        Ok(Ok(())) => {}
        Err(signal) => {
            report.rows.push(Row::skipped(
                "check",
                "the rest",
                format!("ended by {}", signals::name(signal)),
            ));
        }
    }
    report.print(output)?;
    if let Some(page) = page {
        page.write(&html::page(&report))?;
    }
    Ok(match (ended, report.verdict()) {
        (Err(signal), _) => signals::exit_code(signal.as_raw()),
        (_, Outcome::Failure) => BROKEN,
        _ => 0,
    })
}

/// Runs the parts, and adds their rows to the report.
async fn run(
    subject: &Subject,
    args: &Check,
    seed: u64,
    output: &Output,
    report: &mut Report,
) -> Result<(), Failure> {
    let is_wanted = |part| args.only.is_empty() || args.only.contains(&part);
    output.note(format!("opening {}", subject.configuration.display_name));
    // The first namespace is opened in every case: a store that can't be opened has no report.
    let namespace = subject.namespaces.create();
    // A store has reported all its warnings when it is closed.
    subject.open(&namespace).await?.close(CLOSE_TIMEOUT).await;
    let warnings = capture_warnings();
    let locks = subject.open(&namespace).await?;
    report.backend = locks.capabilities().backend;
    if is_wanted(Part::Settings) {
        report.rows.extend(subject.configuration.rows(locks.capabilities().scope));
        report.rows.extend(settings::rows(&locks, subject.options.ttl, warnings));
    }
    let clocks = if is_wanted(Part::Clock) { Some(clock::Watch::begin(&locks).await?) } else { None };
    if is_wanted(Part::Latency) {
        output.note("latency: acquisitions and hand-overs");
        report.rows.extend(latency::rows(subject, args.quick).await?);
    }
    if is_wanted(Part::Conformance) {
        output.note("conformance: the cases of the suite");
        report.rows.extend(conformance::rows(subject, args.quick, output).await?);
    }
    if is_wanted(Part::Faults) {
        let default = Duration::from_secs(if args.quick { 5 } else { 15 });
        let time = args.seconds.unwrap_or(default);
        output.note(format!("faults: {} with seed {seed}", polylock::duration::format(time)));
        report.rows.extend(faults::rows(subject, time, seed).await?);
    }
    if let Some(clocks) = clocks {
        report.rows.extend(clocks.end(&locks).await?);
    }
    Ok(())
}

/// Deletes the namespaces. Returns a row if that fails. A second signal ends it.
async fn clean_up(subject: &Subject, signals: &mut Signals) -> Option<Row> {
    let problem = tokio::select! {
        biased;
        signal = signals.next_termination() => format!("ended by {}", signals::name(signal)),
        deleted = SystemClock.before(SystemClock.now() + CLEANUP_TIMEOUT, subject.clean_up()) => match deleted {
            Some(Ok(())) => return None,
            Some(Err(error)) => Failure::from(error).message,
            None => format!("not done after {}", polylock::duration::format(CLEANUP_TIMEOUT)),
        },
    };
    let value = format!("the namespaces could not be deleted: {problem}");
    let advice = format!(
        "delete the tables, keys, nodes or blobs with names that begin with {}",
        subject.namespaces.prefix()
    );
    Some(Row { advice: Some(advice), ..Row::new("check", "clean-up", Outcome::Failure, value) })
}

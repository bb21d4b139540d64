//! `polylock bench`: the engine of `polylock-bench` on the stores of the command line, its progress, and its report.
//!
//! Each store is measured in namespaces of its own, which are deleted at the end. Contenders, waiters and holders that are killed run in
//! child processes, which have ended before.

mod progress;
mod subjects;
mod worker;

use std::{sync::Arc, time::Duration};

use polylock::{Clock, SystemClock};
use polylock_bench::{
    Children, Event, Machine, Report, Settings, html, measure,
    results::{Run, StoreResults},
};
use rustix::process::Signal;
use tokio::sync::mpsc::unbounded_channel;

pub(crate) use self::worker::{WORKER, main as worker};
use self::{progress::Progress, subjects::Subjects};
use crate::{
    args::{Bench, Format, Global},
    child,
    exit::{Failure, INTERNAL},
    output::{Output, PageFile},
    signals::{self, Signals},
};

/// The exit code if a part failed.
const FAILED: u8 = 1;
/// The interval at which the progress is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// The end of the measurements of one store.
type Ended = Result<(), Stopped>;

/// The reason for which the rest is not measured.
enum Stopped {
    Signal(Signal),
    Failure(Failure),
}

/// Measures the stores, and prints the report.
pub(crate) async fn bench(global: &Global, args: &Bench, output: &Output) -> Result<u8, Failure> {
    let begin = SystemClock.now();
    // A file that can't be written is reported before all measurements.
    let page = args.html.as_deref().map(PageFile::open).transpose()?;
    let subjects = Subjects::choose(global, output)?;
    let cannot = |error| Failure::new(INTERNAL, format!("can't listen for signals: {error}"));
    let mut signals = Signals::listen().map_err(cannot)?;
    if cfg!(debug_assertions) {
        output.warning("this program was built without optimization, so its times are several times longer; build it with --release");
    }
    let mut report = Report { run: run_of(args), stores: Vec::new() };
    let measured = tokio::select! {
        biased;
        signal = signals.next_termination() => Err(Stopped::Signal(signal)),
        opened = subjects.check(output) => opened.map_err(Stopped::Failure),
    };
    let measured = match measured {
        Ok(()) => measure_all(&subjects, output, &mut signals, &mut report).await,
        stopped => stopped,
    };
    output.detail("deleting the namespaces of the benchmark");
    let is_clean = subjects.clean_up(output, &mut signals).await;
    report.run.duration = SystemClock.now().since(begin);
    let code = match measured {
        Ok(()) if is_clean && !report.has_failed() => 0,
        Ok(()) => FAILED,
        Err(Stopped::Signal(signal)) => {
            report.run.ended_by = Some(signals::name(signal));
            signals::exit_code(signal.as_raw())
        }
        Err(Stopped::Failure(failure)) => return Err(failure),
    };
    output.data(&text(&report, output.format))?;
    if let Some(page) = page {
        page.write(&html::page(&report))?;
    }
    Ok(code)
}

/// Measures the stores, one after the other.
async fn measure_all(
    subjects: &Subjects,
    output: &Output,
    signals: &mut Signals,
    report: &mut Report,
) -> Ended {
    let settings = Arc::new(report.run.settings.clone());
    let mut progress = Progress::begin(*output, &settings, subjects.len());
    for (number, subject) in subjects.iter().enumerate() {
        let (subject, settings) = (subject.clone(), settings.clone());
        let number = number.to_string();
        let children = Children::new(move || child::command(&[WORKER, &number]));
        let label = subjects.label(&subject, report);
        report.stores.push(StoreResults {
            label: label.clone(),
            backend: "",
            store: subject.name().to_owned(),
            raw: Err("not opened".to_owned()),
            parts: Vec::new(),
        });
        progress.store(&label);
        let (events, mut received) = unbounded_channel();
        // On a thread of the runtime, as tasks of a program are.
        let mut running = tokio::spawn(async move {
            measure(&subject, &children, &settings, &|event| drop(events.send(event))).await
        });
        let ended = loop {
            let draw = SystemClock.sleep_until(SystemClock.now() + DRAW_EVERY);
            tokio::select! {
                biased;
                signal = signals.next_termination() => {
                    running.abort();
                    (&mut running).await.ok();
                    break Err(Stopped::Signal(signal));
                }
                Some(event) = received.recv() => take(event, &mut progress, report),
                ended = &mut running => break match ended {
                    Ok(measured) => measured.map_err(|error| Stopped::Failure(error.into())),
                    Err(error) => Err(Stopped::Failure(Failure::new(INTERNAL, error.to_string()))),
                },
                () = draw => progress.draw(),
            }
        };
        while let Ok(event) = received.try_recv() {
            take(event, &mut progress, report);
        }
        ended?;
    }
    Ok(())
}

/// Adds an event to the report and to the progress.
fn take(event: Event, progress: &mut Progress, report: &mut Report) {
    let Some(store) = report.stores.last_mut() else { return };
    match event {
        Event::Opened { backend, raw } => (store.backend, store.raw) = (backend, raw),
        Event::Begun { part, planned } => progress.begin_part(part, planned),
        Event::Ended { part, outcome } => {
            progress.end_part();
            store.parts.push((part, outcome));
        }
    }
}

fn run_of(args: &Bench) -> Run {
    let mut settings = if args.quick { Settings::quick() } else { Settings::default() };
    let size = |count: Option<u32>, default| {
        count.map_or(default, |count| usize::try_from(count).unwrap_or(default))
    };
    if !args.only.is_empty() {
        settings.parts.retain(|part| args.only.contains(part));
    }
    settings.time = args.seconds.unwrap_or(settings.time);
    settings.contenders = size(args.contenders, settings.contenders);
    settings.waiters = size(args.waiters, settings.waiters);
    settings.held = size(args.held, settings.held);
    settings.kills = args.kills.unwrap_or(settings.kills);
    Run {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: None,
        date: crate::wall_clock::timestamp(),
        machine: Machine::current(),
        settings,
        duration: Duration::ZERO,
        ended_by: None,
    }
}

fn text(report: &Report, format: Format) -> String {
    match format {
        Format::Text => report.text(),
        Format::Markdown => report.markdown(),
        Format::Json => format!("{:#}\n", report.json()),
        Format::Jsonl => report.json_lines().iter().map(|line| format!("{line}\n")).collect(),
    }
}

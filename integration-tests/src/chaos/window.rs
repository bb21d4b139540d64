//! The shortest part of a history that shows a violation.

use std::{fmt, time::Duration};

use polylock_testkit::history::Section;

use super::observed::{Found, Observed};
use crate::simulation::network::nanos;

/// Faults that ended shortly before the window are shown, too.
const BEFORE: Duration = Duration::from_secs(2);

/// The most lines that are shown.
const MAX_LINES: usize = 60;

/// The events of a window, one a line.
#[derive(Debug)]
pub struct Window(Vec<(u64, String)>, u64);

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(events, origin) = self;
        // The violation is at the end.
        let hidden = events.len().saturating_sub(MAX_LINES);
        if hidden > 0 {
            writeln!(f, "{hidden} earlier events")?;
        }
        for (at, what) in events.iter().skip(hidden) {
            let ms = Duration::from_nanos(at.abs_diff(*origin)).as_secs_f64() * 1e3;
            writeln!(f, "{}{ms:>11.3} ms  {what}", if at < origin { '-' } else { ' ' })?;
        }
        Ok(())
    }
}

/// Returns the shortest window that shows a violation of the same kind as the first of `found`.
#[must_use]
pub fn shortest(observed: &Observed, found: &[Found]) -> Option<(Found, Window)> {
    let kind = found.first()?.violation.kind;
    let same = found.iter().filter(|found| found.violation.kind == kind);
    let smallest = same.min_by_key(|found| found.span.1.saturating_sub(found.span.0))?;
    let (from, to) = smallest.span;
    let is_inside = |at: u64| (from..=to).contains(&at);
    let mut events = Vec::new();
    let sections = observed.sections.iter().filter(|section| Some(&section.lock) == smallest.lock.as_ref());
    for section in sections {
        events.extend(of(section).into_iter().filter(|(at, _)| is_inside(*at)));
    }
    for fault in &observed.applied {
        if fault.from <= to && fault.to.saturating_add(nanos(BEFORE)) >= from {
            events.push((fault.from, format!("fault: {}", fault.action)));
            events.push((fault.to, format!("end of: {}", fault.action)));
        }
    }
    for (process, stalls) in &observed.stalls {
        let inside = stalls.iter().filter(|(begin, end)| *begin <= to && *end >= from);
        events.extend(inside.map(|(begin, end)| {
            (*begin, format!("{process} does not run for {:.1?}", Duration::from_nanos(end - begin)))
        }));
    }
    events.sort();
    Some((smallest.clone(), Window(events, from)))
}

fn of(section: &Section) -> Vec<(u64, String)> {
    let Section { lock, client, mode, invoked, queued, acquired, token, deadline, released, lost, .. } =
        section;
    let token = token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
    let mut events = vec![
        (*invoked, format!("{client} requests {lock}, {mode}")),
        (*acquired, format!("{client} holds {lock}, {mode}, {token}")),
    ];
    events.extend(queued.map(|at| (at, format!("{client} is in the queue"))));
    events.extend(released.map(|at| (at, format!("{client} releases {lock}, {token}"))));
    events.extend(lost.map(|at| (at, format!("{client} is notified of the loss, {token}"))));
    if released.is_none_or(|at| at > *deadline) {
        events.push((*deadline, format!("deadline of {client}, {token}")));
    }
    events
}

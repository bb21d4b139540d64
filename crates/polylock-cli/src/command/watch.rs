//! `watch`.

use polylock::{ChangeKind, LockName, WatchEvent, WatchState};

use super::open;
use crate::{
    args::{Global, Watch},
    exit::Failure,
    output::{Output, WatchLine},
};

/// Prints the present state, then the events as they come, until the reader goes away or a signal ends polylock.
pub(crate) async fn watch(global: &Global, args: &Watch, output: &Output) -> Result<u8, Failure> {
    if args.exact {
        LockName::new(&args.prefix)?;
    }
    let (locks, store) = open(global, output).await?;
    let mut watch =
        if args.exact { locks.watch_lock(&args.prefix).await? } else { locks.watch(&args.prefix).await? };
    output.detail(format!("watching {store}"));
    let backend = locks.capabilities().backend;
    for line in present(watch.state(), backend) {
        if !output.stream(&line.to_text(output))? {
            return Ok(0);
        }
    }
    loop {
        let event = watch.next().await;
        if !output.stream(&event_line(&event, backend).to_text(output))? {
            return Ok(0);
        }
    }
}

/// Returns a line for each holder and each waiter.
fn present<'a>(state: &'a WatchState, backend: &'static str) -> Vec<WatchLine<'a>> {
    let mut lines = Vec::new();
    for lock in state.locks.values() {
        let line = |event, entry| WatchLine::new(event, backend).entry(&lock.status.name, entry);
        lines.extend(lock.status.holders.iter().map(|entry| line("held", entry)));
        let waiters = lock.status.waiters.iter().enumerate();
        lines.extend(waiters.map(|(at, entry)| line("waiting", entry).position(at + 1)));
    }
    lines
}

fn event_line<'a>(event: &'a WatchEvent, backend: &'static str) -> WatchLine<'a> {
    match event {
        WatchEvent::Changed(change) => {
            let line = WatchLine::new(change.kind.as_str(), backend).entry(change.name(), &change.entry);
            match change.kind {
                ChangeKind::Queued { position } => line.position(position),
                ChangeKind::Granted { waited } => line.waited(waited),
                _ => line,
            }
        }
        WatchEvent::Unavailable(outage) => WatchLine::new("unavailable", backend).reason(&outage.error),
        WatchEvent::Available => WatchLine::new("available", backend),
        // The command is built with the library, so it knows all of its events.
        _ => WatchLine::new("unknown", backend),
    }
}

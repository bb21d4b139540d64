//! The standard error of polylock, which its command shares.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsFd,
    sync::OnceLock,
};

use anstream::{AutoStream, ColorChoice, adapter::strip_str};

use super::writer::{Weight, Writer};

/// Returns the writer of standard error; `None` if that can't be written to.
fn writer() -> Option<&'static Writer> {
    static WRITER: OnceLock<Option<Writer>> = OnceLock::new();
    // This is a copy of the descriptor: the standard library's own stream has a lock that a blocked writer would hold.
    let start = || Writer::start(File::from(io::stderr().as_fd().try_clone_to_owned().ok()?)).ok();
    WRITER.get_or_init(start).as_ref()
}

/// Queues one line, with colours if they are enabled.
pub(super) fn line(text: &str, weight: Weight) {
    self::text(format!("{text}\n"), weight);
}

/// Queues one line of JSON.
pub(super) fn json(object: &str, weight: Weight) {
    send(format!("{object}\n").into_bytes(), weight);
}

/// Queues a text, with colours if they are enabled.
pub(super) fn text(text: String, weight: Weight) {
    let plain = AutoStream::choice(&io::stderr()) == ColorChoice::Never;
    let text = if plain { strip_str(&text).to_string() } else { text };
    if let Some(dropped) = writer().map(|writer| writer.dropped(weight)).filter(|dropped| *dropped > 0) {
        let lines = if dropped == 1 { "line was" } else { "lines were" };
        send(
            format!("polylock: {dropped} {lines} dropped here because stderr was not read\n").into_bytes(),
            Weight::Essential,
        );
    }
    send(text.into_bytes(), weight);
}

fn send(bytes: Vec<u8>, weight: Weight) -> bool {
    match writer() {
        Some(writer) => writer.send(bytes, weight),
        // Without threads there is no lock with renewals that this could delay.
        None => io::stderr().write_all(&bytes).is_ok(),
    }
}

/// Queues a frame for a terminal, if it is the last one or the earlier ones have been written: only the latest frame counts.
pub(super) fn draw(text: String, is_last: bool) {
    if is_last || writer().is_none_or(Writer::is_idle) {
        send(text.into_bytes(), Weight::Essential);
    }
}

/// Queues the next JSON line of a series; it may be dropped. See [`dropped`].
pub(super) fn event(line: Vec<u8>, weight: Weight) -> bool {
    send(line, weight)
}

/// Returns the number of lines dropped since the last call, if there is space again.
pub(super) fn dropped(weight: Weight) -> u64 {
    writer().map_or(0, |writer| writer.dropped(weight))
}

/// Waits until all output is written, as long as it is read.
pub(super) fn flush() {
    if let Some(writer) = writer() {
        writer.flush();
    }
}

//! Captures all tracing output of a case as text.

use std::{
    fmt::{self, Write as _},
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use polylock_core::sync::lock;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{Interest, set_global_default},
};

static CAPTURES: AtomicUsize = AtomicUsize::new(0);
static CAPTURED: Mutex<String> = Mutex::new(String::new());

/// Captures the tracing output of the whole process until it is dropped.
#[derive(Debug)]
pub(crate) struct TraceCapture(usize);

impl TraceCapture {
    /// Starts to capture; returns `None` if the program has its own subscriber.
    pub(crate) fn start() -> Option<Self> {
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        let installed =
            INSTALLED.get_or_init(|| set_global_default(CaptureSubscriber(AtomicU64::new(1))).is_ok());
        installed.then(|| {
            let from = captured().len();
            CAPTURES.fetch_add(1, Ordering::SeqCst);
            Self(from)
        })
    }

    /// Returns all tracing output since the start.
    pub(crate) fn captured(&self) -> String {
        captured()[self.0..].to_owned()
    }
}

impl Drop for TraceCapture {
    fn drop(&mut self) {
        CAPTURES.fetch_sub(1, Ordering::SeqCst);
    }
}

fn captured() -> MutexGuard<'static, String> {
    lock(&CAPTURED)
}

struct CaptureSubscriber(AtomicU64);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").ok();
    }
}

impl Subscriber for CaptureSubscriber {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        CAPTURES.load(Ordering::SeqCst) > 0
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut captured = captured();
        write!(captured, "span {}", span.metadata().name()).ok();
        span.record(&mut Line(&mut captured));
        captured.push('\n');
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut captured = captured();
        captured.push_str("record");
        values.record(&mut Line(&mut captured));
        captured.push('\n');
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut captured = captured();
        write!(captured, "{} {}", event.metadata().level(), event.metadata().target()).ok();
        event.record(&mut Line(&mut captured));
        captured.push('\n');
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

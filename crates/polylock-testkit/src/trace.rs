//! Everything that is traced while a case listens, as text.

use std::{
    fmt::{self, Write as _},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{Interest, set_global_default},
};

static LISTENERS: AtomicUsize = AtomicUsize::new(0);
static HEARD: Mutex<String> = Mutex::new(String::new());

/// Listens to the whole process until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener(usize);

impl Listener {
    /// `None` if the program has a subscriber of its own.
    pub(crate) fn start() -> Option<Self> {
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        let installed = INSTALLED.get_or_init(|| set_global_default(Capture(AtomicU64::new(1))).is_ok());
        installed.then(|| {
            let from = heard().len();
            LISTENERS.fetch_add(1, Ordering::SeqCst);
            Self(from)
        })
    }

    /// What was traced since the start, by whomever.
    pub(crate) fn heard(&self) -> String {
        heard()[self.0..].to_owned()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn heard() -> MutexGuard<'static, String> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Capture(AtomicU64);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").ok();
    }
}

impl Subscriber for Capture {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        LISTENERS.load(Ordering::SeqCst) > 0
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut heard = heard();
        write!(heard, "span {}", span.metadata().name()).ok();
        span.record(&mut Line(&mut heard));
        heard.push('\n');
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut heard = heard();
        heard.push_str("record");
        values.record(&mut Line(&mut heard));
        heard.push('\n');
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut heard = heard();
        write!(heard, "{} {}", event.metadata().level(), event.metadata().target()).ok();
        event.record(&mut Line(&mut heard));
        heard.push('\n');
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

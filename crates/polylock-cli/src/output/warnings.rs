//! Warnings of the stores, on stderr.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

/// The warnings since [`capture`].
static CAPTURED: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn captured() -> MutexGuard<'static, Option<Vec<String>>> {
    CAPTURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Captures the warnings from now on, instead of printing them, and returns those that were captured before.
#[cfg(any(feature = "check", feature = "top"))]
pub(crate) fn capture() -> Vec<String> {
    captured().replace(Vec::new()).unwrap_or_default()
}

/// Prints the warnings of the stores from now on, with `print`, unless they are captured.
pub(super) fn show(print: impl Fn(String) + Send + Sync + 'static) {
    let print = move |warning| match &mut *captured() {
        Some(captured) => captured.push(warning),
        None => print(warning),
    };
    // An error means that another subscriber is installed, which happens only in tests.
    tracing_subscriber::registry().with(Warnings(print)).try_init().ok();
}

struct Warnings<F>(F);

impl<S: Subscriber, F: Fn(String) + Send + Sync + 'static> Layer<S> for Warnings<F> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (level, target) = (event.metadata().level(), event.metadata().target());
        // Warnings of core are not printed, because the run reports their effect on the command; messages of drivers are for programmers.
        let store = target.starts_with("polylock_") && !target.starts_with("polylock_core");
        if *level <= Level::WARN && store {
            let mut parts = Parts::default();
            event.record(&mut parts);
            (self.0)(parts.to_string());
        }
    }
}

/// The message, and the server that it is about.
#[derive(Default)]
struct Parts {
    message: String,
    server: Option<String>,
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "server" => self.server = Some(format!("{value:?}")),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = &self.server {
            write!(f, "{server}: ")?;
        }
        f.write_str(&self.message)
    }
}

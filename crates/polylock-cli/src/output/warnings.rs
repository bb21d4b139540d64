//! What the stores warn of, on stderr.

use std::fmt;

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

use super::Output;

/// Has the warnings of the stores printed from now on.
pub(super) fn show(output: Output) {
    // An error means that somebody else listens already, which is only so in tests.
    tracing_subscriber::registry().with(Warnings(output)).try_init().ok();
}

struct Warnings(Output);

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (level, target) = (event.metadata().level(), event.metadata().target());
        // What core warns of is told as what it means for the command; what drivers say is for programmers.
        let store = target.starts_with("polylock_") && !target.starts_with("polylock_core");
        if *level <= Level::WARN && store {
            let mut parts = Parts::default();
            event.record(&mut parts);
            self.0.warning(parts);
        }
    }
}

/// The message, and which server it is about.
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

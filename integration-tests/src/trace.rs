//! Everything that this process traces, its libraries too.

use std::fmt::{Debug, Write as _};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{Interest, set_global_default},
};

/// Gives each line that is traced from now on, spans and events of all levels with their fields, to `hear`, behind the name
/// of what traces it.
///
/// # Panics
/// If somebody in this process listens already.
pub fn listen(hear: impl Fn(&str, &str) + Send + Sync + 'static) {
    set_global_default(Ear(hear)).unwrap_or_else(|error| panic!("{error}"));
}

struct Ear<F>(F);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").ok();
    }
}

impl<F: Fn(&str, &str)> Ear<F> {
    fn hear(&self, target: &str, record: impl FnOnce(&mut Line)) {
        let mut line = Line(target.to_owned());
        record(&mut line);
        self.0(target, &line.0);
    }
}

impl<F: Fn(&str, &str) + Send + Sync + 'static> Subscriber for Ear<F> {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::always()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.hear(span.metadata().target(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.hear("", |line| values.record(line));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.hear(event.metadata().target(), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

//! The tracing output of this process and its libraries.

use std::fmt::{Debug, Write as _};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{Interest, set_global_default},
};

/// Passes every span and event from now on, of all levels, to `handler`: the target, and a line with the fields.
///
/// # Panics
/// If this process has a global subscriber already.
pub fn listen(handler: impl Fn(&str, &str) + Send + Sync + 'static) {
    set_global_default(Collector(handler)).unwrap_or_else(|error| panic!("{error}"));
}

struct Collector<F>(F);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").ok();
    }
}

impl<F: Fn(&str, &str)> Collector<F> {
    fn collect(&self, target: &str, record: impl FnOnce(&mut Line)) {
        let mut line = Line(target.to_owned());
        record(&mut line);
        self.0(target, &line.0);
    }
}

impl<F: Fn(&str, &str) + Send + Sync + 'static> Subscriber for Collector<F> {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::always()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.collect(span.metadata().target(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.collect("", |line| values.record(line));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.collect(event.metadata().target(), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

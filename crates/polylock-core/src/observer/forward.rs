//! The subscriber of the I/O threads: it copies each event, and the observer thread passes the copy to the user's subscriber.
//!
//! It covers the events of the drivers, too, which do not know polylock. It enables nothing by itself: an event that no other
//! subscriber of the process is interested in costs as much as without this one.

use std::fmt;

use tracing::{
    Dispatch, Event, Metadata, Subscriber, dispatcher,
    field::{Field, Value, Visit},
    level_filters::LevelFilter,
    span,
    subscriber::Interest,
};

/// Returns the dispatcher of an I/O thread.
pub(crate) fn forwarding() -> Dispatch {
    Dispatch::new(Forward)
}

/// The forwarding subscriber. Spans of drivers are not forwarded: they would be entered and left at each poll.
struct Forward;

impl Subscriber for Forward {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::never()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::OFF)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let copy = Copy {
            metadata: event.metadata(),
            fields: fields.0,
            parent: event.parent().cloned(),
            is_root: event.is_root(),
        };
        super::report(move || copy.replay());
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A copy of an event that owns its values.
struct Copy {
    metadata: &'static Metadata<'static>,
    fields: Vec<(Field, Owned)>,
    parent: Option<span::Id>,
    is_root: bool,
}

impl Copy {
    fn replay(&self) {
        let Some((any, _)) = self.fields.first() else { return };
        dispatcher::get_default(|subscriber| {
            if !subscriber.enabled(self.metadata) {
                return;
            }
            // There are as many values as an event can have; a slot without a value is skipped.
            let values: [_; MAX_FIELDS] = std::array::from_fn(|at| {
                let field = self.fields.get(at);
                field.map_or((any, None), |(field, value)| (field, Some(value.as_value())))
            });
            let values = self.metadata.fields().value_set(&values);
            let event = if self.is_root || self.parent.is_some() {
                Event::new_child_of(self.parent.clone(), self.metadata, &values)
            } else {
                Event::new(self.metadata, &values)
            };
            subscriber.event(&event);
        });
    }
}

const MAX_FIELDS: usize = 32;

#[derive(Default)]
struct Fields(Vec<(Field, Owned)>);

enum Owned {
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Text(String),
    Debug(tracing::field::DebugValue<Verbatim>),
}

impl Owned {
    fn as_value(&self) -> &dyn Value {
        match self {
            Self::Bool(value) => value,
            Self::I64(value) => value,
            Self::U64(value) => value,
            Self::F64(value) => value,
            Self::Text(value) => value,
            Self::Debug(value) => value,
        }
    }
}

/// A text that is its own `Debug` form.
struct Verbatim(String);

impl fmt::Debug for Verbatim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Fields {
    fn push(&mut self, field: &Field, value: Owned) {
        if self.0.len() < MAX_FIELDS {
            self.0.push((field.clone(), value));
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, Owned::Debug(tracing::field::debug(Verbatim(format!("{value:?}")))));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Owned::Bool(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Owned::I64(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Owned::U64(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Owned::F64(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Owned::Text(value.to_owned()));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        // An error can't be copied, so its text and those of its causes are.
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        self.push(field, Owned::Text(text));
    }
}

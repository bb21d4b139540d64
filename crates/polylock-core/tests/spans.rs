//! The spans: that of an acquisition ends with the call, and a hold has its own span, in which the work under it runs.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{Clock, Locks, SystemClock, memory};
use tracing::{Event, Instrument, Subscriber, info_span, span};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

/// Records the events of spans, by name.
#[derive(Clone, Default)]
struct SpanLog(Arc<Mutex<Vec<String>>>);

impl SpanLog {
    fn record(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn has(&self, line: &str) -> bool {
        self.lines().iter().any(|other| other == line)
    }

    async fn wait_for(&self, line: &str) {
        let by = SystemClock.now() + Duration::from_secs(10);
        while !self.has(line) {
            assert!(SystemClock.now() < by, "{line:?} in {:#?}", self.lines());
            tokio::task::yield_now().await;
        }
    }
}

fn name<S: Subscriber + for<'a> LookupSpan<'a>>(context: &Context<'_, S>, id: Option<&span::Id>) -> String {
    let span = id.and_then(|id| context.span(id));
    span.map_or_else(|| "nothing".to_owned(), |span| span.name().to_owned())
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLog {
    fn on_new_span(&self, _: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let parent = span.parent().map_or("nothing", |parent| parent.name());
        self.record(format!("{} in {parent}", span.name()));
    }

    fn on_follows_from(&self, span: &span::Id, follows: &span::Id, context: Context<'_, S>) {
        self.record(format!("{} follows {}", name(&context, Some(span)), name(&context, Some(follows))));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if !event.metadata().target().starts_with("tokio") {
            let parent = context.event_span(event).map_or("nothing", |span| span.name());
            self.record(format!("event in {parent}"));
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        self.record(format!("{} closes", name(&context, Some(&id))));
    }
}

#[tokio::test]
async fn a_hold_is_a_span_of_its_own_and_the_acquisition_ends_with_the_call() {
    let log = SpanLog::default();
    let subscriber = tracing_subscriber::registry().with(log.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let locks = Locks::new(memory::connect());

    let request = info_span!("request");
    let guard = locks.lock("n").acquire().instrument(request.clone()).await.unwrap();
    drop(request);
    assert!(log.has("polylock.acquire in request"), "{:#?}", log.lines());
    assert!(log.has("polylock.hold in nothing"), "{:#?}", log.lines());
    assert!(log.has("polylock.hold follows polylock.acquire"), "{:#?}", log.lines());
    log.wait_for("polylock.acquire closes").await;
    log.wait_for("request closes").await;
    assert!(guard.is_held() && !log.has("polylock.hold closes"));

    guard.run(async { drop(info_span!("work")) }).await.unwrap();
    assert!(log.has("work in polylock.hold"), "{:#?}", log.lines());
    log.wait_for("polylock.hold closes").await;
    let lines = log.lines();
    // The events are "acquired" and "released".
    assert_eq!(lines.iter().filter(|line| *line == "event in polylock.hold").count(), 2, "{lines:#?}");
    assert_eq!(lines.last().unwrap(), "polylock.hold closes", "{lines:#?}");
}

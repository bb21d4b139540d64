//! The check of a request that has waited for a while: is it the victim of a deadlock?
//!
//! The check costs an acquisition that is granted sooner nothing. Of the requests of a [cycle](crate::deadlock), only the youngest one is
//! refused, so the first check of every other one finds nothing to do. The checks of a process share their looks at the store.

use std::{future::pending, sync::Arc, time::Duration};

use super::{context::StoreContext, queue_reader::read};
use crate::{
    Inspect, Moment, Request,
    deadlock::{Cycle, Look},
};

/// The time between two looks of a process at the store.
const INTERVAL: Duration = Duration::from_millis(100);

/// Returns a look that began at `from` or later; `None` if the store can't be read.
async fn look_begun_at(context: &StoreContext, inspect: &Arc<dyn Inspect>, from: Moment) -> Option<Look> {
    let mut last = context.last_look.lock().await;
    if let Some(look) = last.as_ref().filter(|look| look.began >= from) {
        return Some(look.clone());
    }
    let earliest = last.as_ref().map_or(from, |look| from.max(look.ended + INTERVAL));
    context.until(earliest).await;
    let began = context.now();
    let inspect = inspect.clone();
    let listed = read(context, async move { inspect.list("").await }).await;
    let locks = listed
        .inspect_err(|error| {
            tracing::debug!(error = error as &dyn std::error::Error, "could not look for deadlocks");
        })
        .ok()?;
    let look = Look { began, ended: context.now(), locks: Arc::new(locks) };
    *last = Some(look.clone());
    Some(look)
}

/// Completes when `request`, which has waited since `began`, is the victim of a deadlock. It is checked after `interval`, and again and again;
/// never without an interval, on a store that can't be inspected, or for an owner that is a whole process.
pub(super) async fn victim(
    context: &Arc<StoreContext>,
    request: &Request,
    began: Moment,
    interval: Option<Duration>,
) -> Cycle {
    let (Some(interval), Some(inspect), false) =
        (interval, &context.store.inspect, request.owner.is_process())
    else {
        return pending().await;
    };
    let mut at = began;
    loop {
        at = (at + interval.max(INTERVAL)).max(context.now());
        context.until(at).await;
        if let Some(cycle) = confirmed_cycle(context, inspect, request, at).await {
            return cycle;
        }
    }
}

async fn confirmed_cycle(
    context: &StoreContext,
    inspect: &Arc<dyn Inspect>,
    request: &Request,
    from: Moment,
) -> Option<Cycle> {
    let first = look_begun_at(context, inspect, from).await?;
    let cycle = Cycle::find(&first.locks, &request.owner).filter(|it| it.victim() == Some(&request.owner))?;
    let second = look_begun_at(context, inspect, first.ended + INTERVAL).await?;
    cycle.is_confirmed_by(&second.locks, second.began.since(first.ended)).then_some(cycle)
}

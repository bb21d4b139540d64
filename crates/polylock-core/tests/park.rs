//! The end of a hold at a later time, while a conversion has given it another token.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Clock, Conversion, ConversionOutcome, Convert, Fault, Locks, Mode, Operation, Request, Result,
    SystemClock, Unavailable, memory,
};
use tokio::sync::watch;

const TTL: Duration = Duration::from_millis(300);

/// The shortest time of the holds.
const MIN_HOLD: Duration = Duration::from_secs(2);

/// Conversions that are carried out, and whose replies are late, or are lost.
#[derive(Debug)]
struct LateReply {
    inner: Arc<dyn Convert>,
    is_lost: bool,
    carried_out: watch::Sender<bool>,
}

#[async_trait]
impl Convert for LateReply {
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome> {
        let outcome = self.inner.convert(request, conversion).await;
        self.carried_out.send_replace(true);
        SystemClock.sleep_until(SystemClock.now() + TTL / 6).await;
        match self.is_lost {
            true => Err(Unavailable::new("memory", Operation::Convert, Fault::Temporary, "lost").into()),
            false => outcome,
        }
    }
}

/// 1. A conversion is carried out: the hold has another token in the store, and its process does not know it yet.
/// 2. The guard is dropped. Its `min_hold` is longer than the lease, so the store is to end the hold at that later time.
/// 3. Nobody gets the lock before.
#[tokio::test]
async fn a_hold_lasts_for_its_min_hold_although_a_conversion_is_under_way() {
    for is_lost in [false, true] {
        let mut store = memory::connect();
        let inner = store.convert.take().unwrap();
        let late = Arc::new(LateReply { inner, is_lost, carried_out: watch::Sender::default() });
        let locks = Locks::new(store.converting(late.clone()));
        let began = SystemClock.now();
        let mut guard = locks.lock("a").ttl(TTL).min_hold(MIN_HOLD).acquire().await.unwrap();
        let mut carried_out = late.carried_out.subscribe();
        tokio::select! {
            converted = guard.downgrade(Mode::Shared) => panic!("{converted:?}"),
            carried_out = carried_out.wait_for(|it| *it) => drop(carried_out.unwrap()),
        }
        drop(guard);
        let next = locks.lock("a").acquire().await.unwrap();
        let held = SystemClock.now().since(began);
        assert!(held >= MIN_HOLD, "{held:?}, lost: {is_lost}");
        next.release().await.unwrap();
    }
}

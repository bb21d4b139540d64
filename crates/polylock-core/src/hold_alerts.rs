//! Push notices about holds: a store that learns that a hold was broken has core renew it at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{Clock, LockName, Moment, SystemClock};

/// For how long an alert is kept for holds that are registered after it: longer than the reply to a claim may take.
const KEPT: Duration = Duration::from_secs(10);

/// The holds of this process, by lock, so that a store can have core check them at once.
///
/// A store that can push creates one, puts it into its [`Store`](crate::Store), and calls [`check`](Self::check) when it receives
/// the notice that a lock was broken. Core renews the holds of that lock immediately, and the renewal returns
/// [`Renewal::Lost`](crate::Renewal::Lost) with the break notice. A notice that is lost costs nothing but time: the next
/// periodic renewal finds the mark. A notice may overtake the reply that grants the hold, so alerts are kept for some seconds.
#[derive(Debug, Default)]
pub struct HoldAlerts {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    holds: HashMap<LockName, Vec<Arc<Notify>>>,
    recent: HashMap<LockName, Moment>,
}

impl HoldAlerts {
    /// Has core renew every hold of `name` in this process now. Spurious calls are allowed.
    pub fn check(&self, name: &LockName) {
        let now = SystemClock.now();
        let mut state = self.lock();
        state.recent.retain(|_, until| *until > now);
        state.recent.insert(name.clone(), now + KEPT);
        state.holds.get(name).into_iter().flatten().for_each(|hold| hold.notify_one());
    }

    pub(crate) fn register(self: &Arc<Self>, name: &LockName) -> HoldAlert {
        let notify = Arc::new(Notify::new());
        let mut state = self.lock();
        if state.recent.get(name).is_some_and(|until| *until > SystemClock.now()) {
            notify.notify_one();
        }
        state.holds.entry(name.clone()).or_default().push(notify.clone());
        HoldAlert { alerts: self.clone(), name: name.clone(), notify }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of one hold; dropping it removes it.
#[derive(Debug)]
pub(crate) struct HoldAlert {
    alerts: Arc<HoldAlerts>,
    name: LockName,
    notify: Arc<Notify>,
}

impl HoldAlert {
    /// Ready when the hold is to be checked, also if that was requested before this call.
    pub(crate) async fn raised(&self) {
        self.notify.notified().await;
    }
}

impl Drop for HoldAlert {
    fn drop(&mut self) {
        let holds = &mut self.alerts.lock().holds;
        if let Some(of_name) = holds.get_mut(&self.name) {
            of_name.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
            if of_name.is_empty() {
                holds.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn an_alert_reaches_the_holds_of_its_lock_only_and_leaves_nothing() {
        let alerts = Arc::new(HoldAlerts::default());
        let [a, b] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        let (first, second, other) = (alerts.register(&a), alerts.register(&a), alerts.register(&b));
        alerts.check(&a);
        assert_eq!(
            [&first, &second, &other].map(|hold| hold.raised().now_or_never().is_some()),
            [true, true, false]
        );
        assert!(first.raised().now_or_never().is_none(), "raised once");
        drop((first, second, other));
        assert!(alerts.lock().holds.is_empty());
    }

    #[test]
    fn an_alert_that_overtakes_the_grant_is_kept() {
        let alerts = Arc::new(HoldAlerts::default());
        let [a, b] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        alerts.check(&a);
        assert!(alerts.register(&a).raised().now_or_never().is_some());
        assert!(alerts.register(&b).raised().now_or_never().is_none());
    }
}

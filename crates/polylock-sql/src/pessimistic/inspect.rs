//! Lists and inspects locks, and breaks them.

use std::time::Duration;

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Clock, Entry, Inspect, LockName, LockStatus, Operation, Result, SystemClock,
};

use super::{backend::PessimisticBackend, server::LockFilter};

/// The time that the server may take to end a session after a kill.
const KILL_WAIT: Duration = Duration::from_secs(1);

#[async_trait]
impl Inspect for PessimisticBackend {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let (locks, _) = self.server.holds(Operation::Inspect, LockFilter::Name(name)).await?;
        let lock = locks.into_iter().next();
        Ok(lock.unwrap_or_else(|| LockStatus::new(name.clone(), Vec::new(), Vec::new())))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        self.server.holds(Operation::Inspect, LockFilter::Prefix(prefix)).await.map(|(locks, _)| locks)
    }

    fn lists_semaphores(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let (operation, filter) = (Operation::Break, LockFilter::Name(name));
        self.server.mark(name, order).await?;
        let (locks, sessions) = self.server.holds(operation, filter).await?;
        // The entries and the sessions are in the same order.
        let holders = locks.into_iter().flat_map(|lock| lock.holders).zip(sessions);
        let (broken, sessions): (Vec<Entry>, Vec<_>) =
            holders.filter(|(holder, _)| order.is_target(holder.token)).unzip();
        if order.force {
            for session in &sessions {
                self.kill(operation, *session).await?;
            }
            // The server frees the locks when it has ended the sessions.
            let deadline = SystemClock.now() + KILL_WAIT;
            while SystemClock.now() < deadline {
                let (_, left) = self.server.holds(operation, filter).await?;
                if !sessions.iter().any(|session| left.contains(session)) {
                    break;
                }
                SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)).await;
            }
        }
        Ok(broken)
    }
}

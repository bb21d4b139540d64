//! Inspecting and breaking locks.

use async_trait::async_trait;
use polylock_core::{BreakOrder, Entry, Inspect, LockName, LockStatus, Operation, Result};
use polylock_protocol::{BreakBody, EntryBody, ListBody, NameBody, StatusBody, paths};

use crate::backend::{HttpBackend, invalid};

#[async_trait]
impl Inspect for HttpBackend {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let limit = self.servers.operation_timeout;
        let status: StatusBody =
            self.servers.send(Operation::Inspect, paths::INSPECT, &NameBody::from(name), limit).await?;
        (&status).try_into().map_err(|error| invalid(Operation::Inspect, error))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let (body, limit) = (ListBody { prefix: prefix.to_owned() }, self.servers.operation_timeout);
        let locks: Vec<StatusBody> = self.servers.send(Operation::Inspect, paths::LIST, &body, limit).await?;
        let locks = locks.iter().map(TryInto::try_into).collect::<Result<_, _>>();
        locks.map_err(|error| invalid(Operation::Inspect, error))
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let (body, limit) = (BreakBody::new(name, order), self.servers.operation_timeout);
        let (holders, _): (Vec<EntryBody>, bool) =
            self.servers.send_in_time(Operation::Break, paths::BREAK, &body, limit).await?;
        let holders = holders.iter().map(TryInto::try_into).collect::<Result<_, _>>();
        holders.map_err(|error| invalid(Operation::Break, error))
    }
}

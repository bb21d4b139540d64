//! Breaking a lock: one transaction marks or deletes the nodes of its holders and announces the break.

use std::collections::HashSet;

use polylock_core::{BreakOrder, Clock, Entry, Fault, LockName, Operation, Result, SystemClock};
use zookeeper_client::{Error as Failure, MultiWriteError};

use crate::{
    backend::ZooKeeperBackend,
    breaks::{Announcement, Breaks},
    client::CreateMode,
    error::Cause,
    inspect::{FoundRequest, INTERACTIVE_TIMEOUT},
    nodes::{self, Guid},
    session::{Session, none_if_missing, pause},
};

/// The maximum number of nodes that one transaction changes, within the servers' limit on its size.
const MAX_NODES: usize = 256;

/// The outcome of a transaction.
enum Commit {
    Done,
    /// Not carried out, because some of the nodes have changed or are gone.
    Changed,
    /// Not carried out, because this user may not write the announcement.
    NotAnnounced,
}

impl ZooKeeperBackend {
    /// Breaks the current holds of the lock that are targets of `order`, and returns them.
    ///
    /// # Errors
    /// If the servers refused the break or did not answer in time: some of the holds may be broken.
    pub(crate) async fn break_holds(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let operation = Operation::Break;
        let session = self.session(operation).await?;
        let deadline = SystemClock.now() + INTERACTIVE_TIMEOUT;
        let mut remaining = self.holders(&session, name).await?;
        remaining.retain(|holder| order.is_target(holder.entry.token));
        // A mark would destroy the data of a node of another program or of a newer version, which would not read the notice.
        let foreign =
            if order.force { 0 } else { remaining.extract_if(.., |holder| !holder.has_known_data).count() };
        let (mut broken, mut announces) = (Vec::new(), true);
        while !remaining.is_empty() {
            let later = remaining.split_off(remaining.len().min(MAX_NODES));
            let commit = self.commit_break(&session, name, order, &remaining, announces);
            match self.by_deadline(operation, deadline, commit).await? {
                Commit::Done => {
                    broken.extend(remaining.into_iter().map(|holder| {
                        match (order.force, &holder.entry.broken) {
                            (false, None) => holder.entry.broken(Some(order.notice.clone())),
                            _ => holder.entry,
                        }
                    }));
                    remaining = later;
                }
                Commit::NotAnnounced => {
                    announces = false;
                    remaining.extend(later);
                }
                Commit::Changed => {
                    pause().await;
                    // The break does not apply to requests that have been granted since its start.
                    let targets: HashSet<Guid> =
                        remaining.iter().chain(&later).map(|holder| holder.child.guid).collect();
                    remaining = self.holders(&session, name).await?;
                    remaining.retain(|holder| targets.contains(&holder.child.guid));
                }
            }
        }
        if foreign > 0 {
            let advice = "a node of another program or a newer version holds the lock and can't be marked: break it with force";
            return Err(self
                .sessions
                .failed(operation, Cause::Detected(Fault::Permanent, advice.to_owned())));
        }
        Ok(broken)
    }

    /// Marks or deletes the nodes of `holders` and announces the break in one transaction.
    async fn commit_break(
        &self,
        session: &Session,
        name: &LockName,
        order: &BreakOrder,
        holders: &[FoundRequest],
        announces: bool,
    ) -> Result<Commit, Cause> {
        let holders: Vec<&FoundRequest> =
            holders.iter().filter(|holder| order.force || holder.entry.broken.is_none()).collect();
        if holders.is_empty() {
            return Ok(Commit::Done);
        }
        let mut writer = session.client.new_multi_writer();
        if announces {
            let seen = match none_if_missing(session.client.get_data(&session.breaks).await) {
                Err(Failure::NoAuth) => return Ok(Commit::NotAnnounced),
                seen => seen?,
            };
            let mut breaks = seen.as_ref().map(|(data, _)| Breaks::parse(data)).unwrap_or_default();
            announcements(name, order, &holders).into_iter().for_each(|one| breaks.add(one));
            let bytes = breaks.to_bytes();
            match seen {
                Some((_, stat)) => writer.add_set_data(&session.breaks, &bytes, Some(stat.version))?,
                None => {
                    let options = CreateMode::Persistent.with_acls(self.sessions.config.access().acls());
                    writer.add_create(&session.breaks, &bytes, &options)?;
                }
            }
        }
        for holder in holders {
            if order.force {
                writer.add_delete(&holder.path, None)?;
            } else {
                let marked = nodes::marked(&holder.data, &order.notice);
                writer.add_set_data(&holder.path, &marked, Some(holder.version))?;
            }
        }
        match writer.commit().await {
            Ok(_) => Ok(Commit::Done),
            Err(MultiWriteError::OperationFailed { index: 0, source: Failure::NoAuth }) if announces => {
                tracing::warn!(node = session.breaks, "this user is not allowed to announce breaks");
                Ok(Commit::NotAnnounced)
            }
            Err(MultiWriteError::OperationFailed {
                source: Failure::NoNode | Failure::BadVersion | Failure::NodeExists,
                ..
            }) => Ok(Commit::Changed),
            Err(error) => Err(Failure::from(error).into()),
        }
    }
}

/// Returns the announcement of the break of these holds. A hold that was marked before keeps its notice.
fn announcements(name: &LockName, order: &BreakOrder, holders: &[&FoundRequest]) -> Vec<Announcement> {
    let mut all: Vec<Announcement> = Vec::new();
    for holder in holders {
        let (notice, request) = (holder.entry.broken.as_ref().unwrap_or(&order.notice), holder.child.guid);
        match all.iter_mut().find(|one| one.notice == *notice) {
            Some(one) => one.requests.push(request),
            None => {
                all.push(Announcement {
                    lock: name.clone(),
                    notice: notice.clone(),
                    requests: vec![request],
                });
            }
        }
    }
    all
}

//! Breaking a lock: the nodes of its holders are marked, or deleted, and the break is announced, in one transaction.

use std::collections::HashSet;

use polylock_core::{BreakOrder, Clock, Entry, Fault, LockName, Operation, Result, SystemClock};
use zookeeper_client::{CreateMode, Error as Failure, MultiWriteError};

use crate::{
    backend::Ensemble,
    breaks::{Announced, Breaks},
    inspect::{Found, PATIENCE},
    nodes::{self, Guid},
    session::{Session, Trouble, none_if_missing, pause},
};

/// How many nodes one transaction changes at the most, so that it is not longer than the servers take.
const AT_ONCE: usize = 256;

/// How a transaction ended.
enum Commit {
    Done,
    /// Not carried out, because some of the nodes have changed or gone.
    Changed,
    /// Not carried out, because this user may not write the announcement.
    NotAnnounced,
}

impl Ensemble {
    /// Breaks the holds that there are when this is called, and returns them.
    ///
    /// # Errors
    /// If the servers refused it or did not answer in time: then some of the holds may be broken.
    pub(crate) async fn break_holds(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let operation = Operation::Break;
        let session = self.session(operation).await?;
        let deadline = SystemClock.now() + PATIENCE;
        let mut left = self.holders(&session, name).await?;
        // A mark would destroy the data of a node that is not polylock's or is a newer version's, and nobody would read it.
        let strangers = if order.force { 0 } else { left.extract_if(.., |holder| !holder.is_ours).count() };
        let (mut broken, mut announces) = (Vec::new(), true);
        while !left.is_empty() {
            let later = left.split_off(left.len().min(AT_ONCE));
            let commit = self.commit_break(&session, name, order, &left, announces);
            match self.answer(operation, deadline, commit).await? {
                Commit::Done => {
                    broken.extend(left.into_iter().map(|holder| match (order.force, &holder.entry.broken) {
                        (false, None) => holder.entry.broken(Some(order.notice.clone())),
                        _ => holder.entry,
                    }));
                    left = later;
                }
                Commit::NotAnnounced => {
                    announces = false;
                    left.extend(later);
                }
                Commit::Changed => {
                    pause().await;
                    // Those who have got the lock meanwhile are not meant.
                    let meant: HashSet<Guid> =
                        left.iter().chain(&later).map(|holder| holder.child.guid).collect();
                    left = self.holders(&session, name).await?;
                    left.retain(|holder| meant.contains(&holder.child.guid));
                }
            }
        }
        if strangers > 0 {
            let advice = "a node that is not polylock's, or is a newer version's, holds the lock and can't be marked: break it \
                          with force";
            return Err(self.sessions.failed(operation, Trouble::Ours(Fault::Permanent, advice.to_owned())));
        }
        Ok(broken)
    }

    /// Marks or deletes the nodes of `holders`, and announces it, all or nothing.
    async fn commit_break(
        &self,
        session: &Session,
        name: &LockName,
        order: &BreakOrder,
        holders: &[Found],
        announces: bool,
    ) -> Result<Commit, Trouble> {
        let holders: Vec<&Found> =
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
            announced(name, order, &holders).into_iter().for_each(|one| breaks.add(one));
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
                tracing::warn!(node = session.breaks, "this user may not announce breaks");
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

/// The announcement of the break of these holds. One that was marked before keeps its notice.
fn announced(name: &LockName, order: &BreakOrder, holders: &[&Found]) -> Vec<Announced> {
    let mut all: Vec<Announced> = Vec::new();
    for holder in holders {
        let (notice, request) = (holder.entry.broken.as_ref().unwrap_or(&order.notice), holder.child.guid);
        match all.iter_mut().find(|one| one.notice == *notice) {
            Some(one) => one.requests.push(request),
            None => {
                all.push(Announced { lock: name.clone(), notice: notice.clone(), requests: vec![request] });
            }
        }
    }
    all
}

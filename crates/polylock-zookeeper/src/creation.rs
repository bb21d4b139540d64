//! The node of a request: its creation, its position among the other requests of the lock, and its deletion.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use polylock_core::{Clock, Executor, Fault, FencingToken, LostReason, Mode, Release, Request, SystemClock};
use zookeeper_client::{Error as Failure, Stat};

use crate::{
    breaks::Breaks,
    client::CreateMode,
    config::Config,
    directory::{Directory, Position, Predecessor},
    error::{Cause, Outcome, outcome, task_failed},
    nodes::{self, Child, Guid, LAST_SEQUENCE, NodeData, RESTART_FROM},
    session::{Registration, Removal, Session, none_if_missing, pause},
    sessions::Sessions,
};

/// The maximum number of attempts to create a node in a lock directory that is deleted concurrently.
const MAX_ATTEMPTS: usize = 16;

/// The node of a request.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) child: Child,
    pub(crate) token: FencingToken,
    /// Distinguishes the node from nodes of the session without a request; see [`Session::delete_orphans`].
    _registration: Registration,
}

impl Node {
    pub(crate) fn path(&self) -> String {
        self.path_of(&self.child.name)
    }

    /// Returns the path of another request of the same lock.
    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.directory.path)
    }

    /// Returns the queue position of a request whose last claim waited for `previous`. `is_shown` is true if a list that was sent since the
    /// start of the claim has shown the node.
    pub(crate) async fn position(
        &self,
        previous: Option<&Predecessor>,
        mut is_shown: bool,
        counts: bool,
    ) -> Result<Position, Failure> {
        loop {
            let Some(position) = self.directory.position(&self.child, counts) else {
                is_shown |= self.list(false).await?;
                continue;
            };
            let last = match &position {
                Position::First if !is_shown => {
                    return Ok(if self.exists().await? { position } else { Position::Gone });
                }
                Position::Behind { last, .. } if !is_shown => last,
                _ => return Ok(position),
            };
            match previous {
                // It was not woken by the end of `previous`, so it checks that no event was missed.
                Some(previous) if previous.rank() == last.rank() => {
                    if self.directory.list_is_due() {
                        is_shown = self.list(true).await?;
                    } else if self.session.client.check_stat(&self.path_of(last.name())).await?.is_some() {
                        return Ok(position);
                    } else {
                        self.directory.remove(last.rank());
                    }
                }
                // The requests ahead of it may have gone long ago.
                Some(Predecessor::Other(_)) if matches!(last, Predecessor::Other(_)) => {
                    is_shown = self.list(true).await?;
                }
                _ => return Ok(position),
            }
        }
    }

    /// Lists the lock. If `again` is false, the list is skipped when another claim has listed this node meanwhile. Returns true if this
    /// call has listed.
    async fn list(&self, again: bool) -> Result<bool, Failure> {
        let directory = &self.directory;
        let _guard = directory.listing.lock().await;
        if !again && directory.is_listed(self.child.rank()) {
            return Ok(false);
        }
        let (number, list) = directory.send_list(|| self.session.client.list_children(&directory.path));
        let children = none_if_missing(list.await)?.unwrap_or_default();
        self.session.listed(directory, number, children);
        Ok(true)
    }

    /// Returns true if the node exists on the servers.
    async fn exists(&self) -> Result<bool, Failure> {
        let stat = self.session.client.check_stat(&self.path()).await?;
        Ok(stat.is_some_and(|stat| {
            self.session.owns(stat.ephemeral_owner) && FencingToken::new(stat.czxid) == Some(self.token)
        }))
    }

    /// Returns true if the sequences of its directory are nearly used up, so that their order is no longer reliable.
    pub(crate) const fn is_beyond_last_sequence(&self) -> bool {
        self.child.sequence < 0 || self.child.sequence > LAST_SEQUENCE
    }

    /// Returns the reason for which the node is no longer a hold, from the result `read` of reading it; `None` if it still is a hold.
    ///
    /// # Errors
    /// If the servers did not answer: the node may or may not be a hold.
    pub(crate) async fn loss(
        &self,
        read: Result<(Vec<u8>, Stat), Failure>,
    ) -> Result<Option<LostReason>, Failure> {
        match read {
            Ok((data, stat))
                if self.session.owns(stat.ephemeral_owner)
                    && FencingToken::new(stat.czxid) == Some(self.token) =>
            {
                Ok(NodeData::parse(&data).and_then(|data| data.broken).map(LostReason::Broken))
            }
            Ok(_) => Ok(Some(LostReason::Gone)),
            Err(Failure::NoNode) => Ok(Some(self.gone_reason().await)),
            Err(error) if outcome(&error) == Outcome::Ended => Ok(Some(LostReason::SessionEnded)),
            Err(error) => Err(error),
        }
    }

    /// Deletes the node, with retries and without a time limit; see [`Session::delete`].
    pub(crate) async fn delete(&self) -> Release {
        let removal = self.session.delete(&self.path()).await;
        self.directory.remove(self.child.rank());
        self.restart_sequences().await;
        match removal {
            Removal::Done => Release::Released,
            Removal::Absent => Release::Lost(self.gone_reason().await),
            Removal::SessionEnded => Release::Lost(LostReason::SessionEnded),
        }
    }

    /// Returns the reason why a missing node is gone: the notice of a break if there is one. If the servers do not answer, the reason is
    /// `Gone`.
    async fn gone_reason(&self) -> LostReason {
        let notice = Breaks::read(&self.session).await.ok().and_then(|breaks| breaks.notice(self.child.guid));
        notice.map_or(LostReason::Gone, LostReason::Broken)
    }

    /// Deletes the directory after the deletion of a node with a high sequence, if it is empty, so that its sequences restart.
    pub(crate) async fn restart_sequences(&self) {
        if self.child.sequence < 0 || self.child.sequence > RESTART_FROM {
            // If it is not empty, the last request to leave deletes it. If it is gone, nothing remains to be done.
            self.session.client.delete(&self.directory.path, None).await.ok();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Either the node or its session is gone.
        self.directory.remove(self.child.rank());
    }
}

/// The creation of a node. It runs in a task of its own to a definite end, even if the caller goes away.
#[derive(Clone)]
pub(crate) struct Creation(Shared<BoxFuture<'static, Result<Created, Cause>>>);

/// A node. `is_listed` is true if the lock was listed right after the create.
#[derive(Debug, Clone)]
pub(crate) struct Created {
    pub(crate) node: Arc<Node>,
    pub(crate) is_listed: bool,
}

impl Creation {
    pub(crate) fn start(sessions: Arc<Sessions>, session: Arc<Session>, request: &Request) -> Self {
        let data = nodes::data(request, request.ttl.min(session.lifetime.longest_lease()));
        let directory = session.directories.enter(nodes::directory(&sessions.config.root, &request.name));
        let (mode, lists) = (request.mode, request.wants_position);
        let created =
            async move { create_node(&sessions.config, session, directory, mode, lists, &data).await };
        let task = Executor::current().spawn(created);
        Self(task.map(|created| created.unwrap_or_else(|error| Err(task_failed(&error)))).boxed().shared())
    }

    /// Waits for the end of the creation. An error means that there is no node and never will be.
    pub(crate) async fn outcome(&self) -> Result<Created, Cause> {
        self.0.clone().await
    }
}

async fn create_node(
    config: &Config,
    session: Arc<Session>,
    directory: Arc<Directory>,
    mode: Mode,
    lists: bool,
    data: &[u8],
) -> Result<Created, Cause> {
    let (client, path) = (&session.client, &directory.path);
    let options = CreateMode::EphemeralSequential.with_acls(config.access().acls());
    let container = CreateMode::Container.with_acls(config.access().acls());
    let mut missing = false;
    for _ in 0..MAX_ATTEMPTS {
        // The request is registered from before the create is sent until the node is gone.
        let registration = session.register();
        let guid = registration.guid;
        let prefix = nodes::prefix(path, guid, mode);
        let sent = SystemClock.now();
        // All requests are sent at once, and the server processes them in this order, so that no session can delete the empty
        // directory in between.
        let parent = missing.then(|| client.create(path, &[], &container));
        let create = || client.create(&prefix, data, &options);
        let (number, create, list) =
            directory.send_create(mode, lists, create, || client.list_children(path));
        let parent = async {
            match parent {
                Some(parent) => parent.await.map(drop),
                None => Ok(()),
            }
        };
        let list = async {
            let (number, list) = list?;
            Some((number, list.await.ok()?))
        };
        let (parent, created, listed) = futures_util::join!(parent, create, list);
        if missing && parent.is_ok() {
            session.directories.add_created(path);
        }
        let error = match created {
            Ok((stat, sequence)) => {
                session.lifetime.committed(sent);
                let child = Child {
                    name: format!("{guid}_{}_{sequence}", mode.code()),
                    guid,
                    mode,
                    sequence: sequence.into_i64(),
                };
                return register_created(session, directory, child, number, stat.czxid, registration, listed);
            }
            Err(error) => error,
        };
        match outcome(&error) {
            Outcome::Refused if error == Failure::NoNode => {
                missing = true;
                match parent {
                    Ok(()) | Err(Failure::NodeExists) => {}
                    Err(Failure::NoNode) => session.make_root(config).await?,
                    Err(error) => return Err(error.into()),
                }
            }
            Outcome::Refused | Outcome::Ended => return Err(error.into()),
            Outcome::Unknown => match find_created(&session, path, guid).await? {
                Some((child, token)) => {
                    let (number, ()) = directory.send_list(|| ());
                    return register_created(session, directory, child, number, token, registration, None);
                }
                None => return Err(error.into()),
            },
        }
    }
    Err(Failure::NoNode.into())
}

fn register_created(
    session: Arc<Session>,
    directory: Arc<Directory>,
    child: Child,
    created: u64,
    token: i64,
    registration: Registration,
    listed: Option<(u64, Vec<String>)>,
) -> Result<Created, Cause> {
    let unexpected = || {
        let advice = "unexpected reply: a negative transaction id";
        Cause::Detected(Fault::Permanent, advice.to_owned())
    };
    let token = FencingToken::new(token).ok_or_else(unexpected)?;
    directory.join(&child, created);
    let node = Arc::new(Node { session, directory, child, token, _registration: registration });
    let is_listed = listed.is_some();
    if let Some((number, children)) = listed {
        node.session.listed(&node.directory, number, children);
    }
    Ok(Created { node, is_listed })
}

/// Searches for a node whose create was not answered, with retries until the result is certain.
///
/// 1. A sends a create. Its server or the connection dies before the reply arrives.
/// 2. A's session continues on another server. If A listed the directory at once, the create might still be on its way through the first
///    server to the leader, or the second server might lag behind: a node without a request would block the lock.
/// 3. A `sync` is not enough. It is answered without a majority, so a deposed leader that has not noticed its deposition answers with an
///    old state, while the create arrives at its successor.
/// 4. A transaction is enough. The majority that commits it follows the leader that has moved the session to A's new server, and from
///    then on refuses packets of the session through the first one (`SessionMoved`). A list after that transaction is complete.
async fn find_created(session: &Session, directory: &str, guid: Guid) -> Result<Option<(Child, i64)>, Cause> {
    loop {
        let error = match find_once(session, directory, guid).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if outcome(&error) != Outcome::Unknown {
            return Err(error.into());
        }
        pause().await;
    }
}

async fn find_once(session: &Session, directory: &str, guid: Guid) -> Result<Option<(Child, i64)>, Failure> {
    let children = session.children_after_commit(directory).await?;
    let Some(child) = nodes::requests(children).into_iter().find(|child| child.guid == guid) else {
        return Ok(None);
    };
    let stat = session.client.check_stat(&format!("{directory}/{}", child.name)).await?;
    Ok(stat.filter(|stat| session.owns(stat.ephemeral_owner)).map(|stat| (child, stat.czxid)))
}

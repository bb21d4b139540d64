//! The node of a request: how it is created, what it means among the others of its lock, and how it is deleted.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use polylock_core::{Fault, FencingToken, LostReason, Mode, Release, Request};
use zookeeper_client::{CreateMode, Error as Failure, Stat};

use crate::{
    config::Config,
    directory::{Directory, Position, Predecessor},
    error::{Outcome, outcome},
    nodes::{self, Child, Guid, LAST, NodeData, RENEWED_FROM},
    session::{Known, Removal, Session, Sessions, Trouble, cut_off, none_if_missing, pause},
};

/// How often a directory that goes away just when it is needed is made again.
const AGAIN: usize = 16;

/// The node of a request.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) child: Child,
    pub(crate) token: FencingToken,
    /// Distinguishes it from nodes of the session that no request uses; see [`Session::delete_orphans`].
    _known: Known,
}

impl Node {
    pub(crate) fn path(&self) -> String {
        self.path_of(&self.child.name)
    }

    /// The path of another request of the same lock.
    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.directory.path)
    }

    /// Returns where it stands among the others of its lock, for a request whose last claim waited for `before`. `is_shown` says whether
    /// a list that was sent since the claim began has shown it.
    pub(crate) async fn position(
        &self,
        before: Option<&Predecessor>,
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
                    return Ok(if self.is_there().await? { position } else { Position::Gone });
                }
                Position::Behind { last, .. } if !is_shown => last,
                _ => return Ok(position),
            };
            match before {
                // It was not woken by that one, and looks whether it has missed something.
                Some(before) if before.rank() == last.rank() => {
                    if self.directory.list_is_due() {
                        is_shown = self.list(true).await?;
                    } else if self.session.client.check_stat(&self.path_of(last.name())).await?.is_some() {
                        return Ok(position);
                    } else {
                        self.directory.remove(last.rank());
                    }
                }
                // Those before it may have gone long ago.
                Some(Predecessor::Other(_)) if matches!(last, Predecessor::Other(_)) => {
                    is_shown = self.list(true).await?;
                }
                _ => return Ok(position),
            }
        }
    }

    /// Lists the lock, unless only this node is to be shown and another claim does that first. Returns whether this call has listed.
    async fn list(&self, again: bool) -> Result<bool, Failure> {
        let directory = &self.directory;
        let _alone = directory.listing.lock().await;
        if !again && directory.is_listed(self.child.rank()) {
            return Ok(false);
        }
        let (number, list) = directory.send_list(|| self.session.client.list_children(&directory.path));
        let children = none_if_missing(list.await)?.unwrap_or_default();
        self.session.listed(directory, number, children);
        Ok(true)
    }

    /// Whether the servers have it.
    async fn is_there(&self) -> Result<bool, Failure> {
        let stat = self.session.client.check_stat(&self.path()).await?;
        Ok(stat.is_some_and(|stat| {
            self.session.owns(stat.ephemeral_owner) && FencingToken::new(stat.czxid) == Some(self.token)
        }))
    }

    /// Whether the numbers of its directory are nearly used up, so that nobody may count on their order.
    pub(crate) const fn is_used_up(&self) -> bool {
        self.child.sequence < 0 || self.child.sequence > LAST
    }

    /// Returns why the node, of which this was read, is a hold no longer, or `None` if it still is one.
    ///
    /// # Errors
    /// If the servers did not answer: then it may be one or not.
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
            Err(Failure::NoNode) => Ok(Some(self.why_gone().await)),
            Err(error) if outcome(&error) == Outcome::Ended => Ok(Some(LostReason::SessionEnded)),
            Err(error) => Err(error),
        }
    }

    /// Deletes the node, however long that takes; see [`Session::delete`].
    pub(crate) async fn delete(&self) -> Release {
        let removal = self.session.delete(&self.path()).await;
        self.directory.remove(self.child.rank());
        self.renew_directory().await;
        match removal {
            Removal::Done => Release::Released,
            Removal::Absent => Release::Lost(self.why_gone().await),
            Removal::SessionEnded => Release::Lost(LostReason::SessionEnded),
        }
    }

    /// Returns why the node, which has just been found missing, is gone. If the servers do not answer, it is only certain that it
    /// is.
    async fn why_gone(&self) -> LostReason {
        let notice = self.session.breaks().await.ok().and_then(|breaks| breaks.notice(self.child.guid));
        notice.map_or(LostReason::Gone, LostReason::Broken)
    }

    /// What follows its deletion: a directory that has counted far is deleted if it is empty, so that it counts anew.
    pub(crate) async fn renew_directory(&self) {
        if self.child.sequence < 0 || self.child.sequence > RENEWED_FROM {
            // Not empty, or gone: the last one who leaves, or nobody, has to.
            self.session.client.delete(&self.directory.path, None).await.ok();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It is gone, or its session is.
        self.directory.remove(self.child.rank());
    }
}

/// The making of a node. It goes on by itself, to a definite end, whoever waits for it.
#[derive(Clone)]
pub(crate) struct Making(Shared<BoxFuture<'static, Result<Made, Trouble>>>);

/// A node, and whether the lock was listed behind its create.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) node: Arc<Node>,
    pub(crate) is_listed: bool,
}

impl Making {
    pub(crate) fn begin(sessions: Arc<Sessions>, session: Arc<Session>, request: &Request) -> Self {
        let data = nodes::data(request, request.ttl.min(session.lease()));
        let directory = session.directories.enter(nodes::directory(&sessions.config.root, &request.name));
        let (mode, lists) = (request.mode, request.wants_position);
        let made = async move { make(&sessions.config, session, directory, mode, lists, &data).await };
        let task = tokio::spawn(made);
        Self(task.map(|made| made.unwrap_or_else(|cut| Err(cut_off(&cut)))).boxed().shared())
    }

    /// How it ends. An error means that there is no node, and will be none.
    pub(crate) async fn end(&self) -> Result<Made, Trouble> {
        self.0.clone().await
    }
}

async fn make(
    config: &Config,
    session: Arc<Session>,
    directory: Arc<Directory>,
    mode: Mode,
    lists: bool,
    data: &[u8],
) -> Result<Made, Trouble> {
    let (client, path) = (&session.client, &directory.path);
    let options = CreateMode::EphemeralSequential.with_acls(config.access().acls());
    let container = CreateMode::Container.with_acls(config.access().acls());
    let mut missing = false;
    for _ in 0..AGAIN {
        // From before the create is sent until the node is gone.
        let known = session.registers();
        let guid = known.guid;
        let prefix = nodes::prefix(path, guid, mode);
        // All are sent at once, and the server takes them in this order: whoever deletes empty directories has no time to.
        let above = missing.then(|| client.create(path, &[], &container));
        let create = || client.create(&prefix, data, &options);
        let (number, create, list) =
            directory.send_create(mode, lists, create, || client.list_children(path));
        let above = async {
            match above {
                Some(above) => above.await.map(drop),
                None => Ok(()),
            }
        };
        let list = async {
            let (number, list) = list?;
            Some((number, list.await.ok()?))
        };
        let (above, created, listed) = futures_util::join!(above, create, list);
        if missing && above.is_ok() {
            session.directories.add_created(path);
        }
        let error = match created {
            Ok((stat, sequence)) => {
                let child = Child {
                    name: format!("{guid}_{}_{sequence}", mode.code()),
                    guid,
                    mode,
                    sequence: sequence.into_i64(),
                };
                return made(session, directory, child, number, stat.czxid, known, listed);
            }
            Err(error) => error,
        };
        match outcome(&error) {
            Outcome::Refused if error == Failure::NoNode => {
                missing = true;
                match above {
                    Ok(()) | Err(Failure::NodeExists) => {}
                    Err(Failure::NoNode) => session.make_root(config).await?,
                    Err(error) => return Err(error.into()),
                }
            }
            Outcome::Refused | Outcome::Ended => return Err(error.into()),
            Outcome::Unknown => match find(&session, config, path, guid).await? {
                Some((child, token)) => {
                    let (number, ()) = directory.send_list(|| ());
                    return made(session, directory, child, number, token, known, None);
                }
                None => return Err(error.into()),
            },
        }
    }
    Err(Failure::NoNode.into())
}

fn made(
    session: Arc<Session>,
    directory: Arc<Directory>,
    child: Child,
    created: u64,
    token: i64,
    known: Known,
    listed: Option<(u64, Vec<String>)>,
) -> Result<Made, Trouble> {
    let unexpected = || {
        let advice = "unexpected reply of the server: a negative transaction id";
        Trouble::Ours(Fault::Permanent, advice.to_owned())
    };
    let token = FencingToken::new(token).ok_or_else(unexpected)?;
    directory.join(&child, created);
    let node = Arc::new(Node { session, directory, child, token, _known: known });
    let is_listed = listed.is_some();
    if let Some((number, children)) = listed {
        node.session.listed(&node.directory, number, children);
    }
    Ok(Made { node, is_listed })
}

/// Looks for a node whose creation was not answered, as often as it takes.
///
/// 1. A sends a create. The server it is connected to dies, or the connection does, before the reply comes.
/// 2. A's session continues on another server. If A listed the directory there at once, the create might still be on its way through
///    the first server to the leader, or the second server might lag behind: a node that no request knows would block the lock.
/// 3. A `sync` is not enough. It is answered without a majority, so a leader that has been deposed and does not know it yet
///    answers from the past, while the create arrives at its successor.
/// 4. A transaction is. The majority that commits it follows the leader that has moved the session to A's new server, and from
///    then on refuses what the session sent through the first one (`SessionMoved`). What is listed behind it is complete.
async fn find(
    session: &Session,
    config: &Config,
    directory: &str,
    guid: Guid,
) -> Result<Option<(Child, i64)>, Trouble> {
    loop {
        let error = match look(session, config, directory, guid).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if outcome(&error) != Outcome::Unknown {
            return Err(error.into());
        }
        pause().await;
    }
}

async fn look(
    session: &Session,
    config: &Config,
    directory: &str,
    guid: Guid,
) -> Result<Option<(Child, i64)>, Failure> {
    let children = session.children_after_commit(config, directory).await?;
    let Some(child) = nodes::requests(children).into_iter().find(|child| child.guid == guid) else {
        return Ok(None);
    };
    let stat = session.client.check_stat(&format!("{directory}/{}", child.name)).await?;
    Ok(stat.filter(|stat| session.owns(stat.ephemeral_owner)).map(|stat| (child, stat.czxid)))
}

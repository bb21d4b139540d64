//! The node of a request: how it is created, what it means among the others of its lock, and how it is deleted.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use polylock_core::{Fault, FencingToken, LockName, LostReason, Mode, Release, Request, queue};
use zookeeper_client::{CreateMode, Error as Failure};

use crate::{
    config::Config,
    error::{Outcome, outcome},
    nodes::{self, Child, Guid, LAST, NodeData, RENEWED_FROM},
    session::{Known, Removal, Session, Sessions, Trouble, cut_off, pause},
};

/// How often a directory that goes away just when it is needed is made again.
const AGAIN: usize = 16;

/// The node of a request.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) directory: String,
    pub(crate) child: Child,
    pub(crate) token: FencingToken,
    /// Distinguishes it from nodes of the session that no request uses; see [`Session::delete_orphans`].
    _known: Known,
}

impl Node {
    pub(crate) fn path(&self) -> String {
        self.path_of(&self.child)
    }

    /// The path of another request of the same lock.
    pub(crate) fn path_of(&self, child: &Child) -> String {
        format!("{}/{}", self.directory, child.name)
    }

    /// What all requests of the lock mean for this one.
    pub(crate) fn position(&self, mut requests: Vec<Child>) -> Position {
        let Some(at) = requests.iter().position(|child| child.name == self.child.name) else {
            return Position::Gone;
        };
        let (standpoints, mode) = (nodes::standpoints(&requests), self.child.mode);
        let Some(last) = queue::watched(&standpoints, at as u64, mode) else { return Position::First };
        let ahead = u32::try_from(queue::blockers(&standpoints, at as u64, mode).count()).unwrap_or(u32::MAX);
        let last = usize::try_from(last.seq).ok().filter(|last| *last < requests.len());
        last.map_or(Position::Gone, |last| Position::Behind { ahead, last: requests.swap_remove(last) })
    }

    /// Whether the numbers of its directory are nearly used up, so that nobody may count on their order.
    pub(crate) const fn is_used_up(&self) -> bool {
        self.child.sequence < 0 || self.child.sequence > LAST
    }

    /// Returns why the node is a hold no longer, or `None` if it still is one.
    ///
    /// # Errors
    /// If the servers did not answer: then it may be one or not.
    pub(crate) async fn loss(&self) -> Result<Option<LostReason>, Failure> {
        match self.session.client.get_data(&self.path()).await {
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
            self.session.client.delete(&self.directory, None).await.ok();
        }
    }
}

/// Where a node stands among the others of its lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// It is not there any more.
    Gone,
    /// Nobody is in its way: it holds the lock.
    First,
    /// As many are in its way, of which this is the last.
    Behind { ahead: u32, last: Child },
}

/// The making of a node. It goes on by itself, to a definite end, whoever waits for it.
#[derive(Clone)]
pub(crate) struct Making(Shared<BoxFuture<'static, Result<Made, Trouble>>>);

/// A node, and the children of its directory as they were then.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) node: Arc<Node>,
    pub(crate) children: Option<Vec<String>>,
}

impl Making {
    pub(crate) fn begin(sessions: Arc<Sessions>, session: Arc<Session>, request: &Request) -> Self {
        let data = nodes::data(request, request.ttl.min(session.lease()));
        let (name, mode) = (request.name.clone(), request.mode);
        let made = async move { make(&sessions.config, session, &name, mode, &data).await };
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
    name: &LockName,
    mode: Mode,
    data: &[u8],
) -> Result<Made, Trouble> {
    let directory = nodes::directory(&config.root, name);
    let options = CreateMode::EphemeralSequential.with_acls(config.access().acls());
    let container = CreateMode::Container.with_acls(config.access().acls());
    let mut missing = false;
    for _ in 0..AGAIN {
        // From before the create is sent until the node is gone.
        let known = session.registers();
        let guid = known.guid;
        let prefix = nodes::prefix(&directory, guid, mode);
        // All are sent at once, and the server takes them in this order: whoever deletes empty directories has no time to.
        let above = missing.then(|| session.client.create(&directory, &[], &container));
        let create = session.client.create(&prefix, data, &options);
        let list = session.client.list_children(&directory);
        let above = async {
            match above {
                Some(above) => above.await.map(drop),
                None => Ok(()),
            }
        };
        let (above, created, listed) = futures_util::join!(above, create, list);
        let error = match created {
            Ok((stat, sequence)) => {
                let child = Child {
                    name: format!("{guid}_{}_{sequence}", mode.code()),
                    guid,
                    mode,
                    sequence: sequence.into_i64(),
                };
                return made(session, directory, child, stat.czxid, known, listed.ok());
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
            Outcome::Unknown => match find(&session, config, &directory, guid).await? {
                Some((child, token)) => return made(session, directory, child, token, known, None),
                None => return Err(error.into()),
            },
        }
    }
    Err(Failure::NoNode.into())
}

fn made(
    session: Arc<Session>,
    directory: String,
    child: Child,
    token: i64,
    known: Known,
    children: Option<Vec<String>>,
) -> Result<Made, Trouble> {
    let unexpected = || {
        let advice = "unexpected reply of the server: a negative transaction id";
        Trouble::Ours(Fault::Permanent, advice.to_owned())
    };
    let token = FencingToken::new(token).ok_or_else(unexpected)?;
    Ok(Made { node: Arc::new(Node { session, directory, child, token, _known: known }), children })
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

//! The nodes of an ensemble, and the changes that transactions make.

use std::collections::{BTreeMap, BTreeSet};

use polylock_zookeeper::{
    simulation::Change,
    zookeeper_client::{Error, EventType, Stat},
};

/// The nodes of one server, after its last transaction.
#[derive(Debug, Clone)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    /// The id of the last transaction.
    pub zxid: i64,
    /// True for the planted bug: the sequences of children begin again when children are deleted.
    repeats_sequences: bool,
}

#[derive(Debug, Clone)]
struct Node {
    data: Vec<u8>,
    stat: Stat,
    children: BTreeSet<String>,
}

/// The effect of a change that was accepted.
#[derive(Debug, Clone)]
pub enum Effect {
    /// The node is created, with this session as its owner, or 0.
    Create(String, Vec<u8>, i64),
    /// The data are written.
    Write(String, Vec<u8>),
    /// The node is deleted.
    Delete(String),
}

impl Tree {
    /// Creates a tree with the root alone.
    #[must_use]
    pub fn new(repeats_sequences: bool) -> Self {
        let root = Node::new(Vec::new(), 0, 0);
        Self { nodes: BTreeMap::from([("/".to_owned(), root)]), zxid: 0, repeats_sequences }
    }

    /// Returns the state of a node, if it exists.
    #[must_use]
    pub fn state(&self, path: &str) -> Option<Stat> {
        self.nodes.get(path).map(Node::state)
    }

    /// Returns the data and the state of a node.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn data(&self, path: &str) -> Result<(Vec<u8>, Stat), Error> {
        self.nodes.get(path).map(|node| (node.data.clone(), node.state())).ok_or(Error::NoNode)
    }

    /// Returns the names of the children of a node.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn children(&self, path: &str) -> Result<Vec<String>, Error> {
        self.nodes.get(path).map(|node| node.children.iter().cloned().collect()).ok_or(Error::NoNode)
    }

    /// Returns the effects that delete the nodes of a session.
    #[must_use]
    pub fn deletions(&self, session: i64) -> Vec<Effect> {
        let is_own = |node: &Node| node.stat.ephemeral_owner == session;
        let own = self.nodes.iter().filter(|(_, node)| is_own(node));
        own.map(|(path, _)| Effect::Delete(path.clone())).collect()
    }

    /// Checks a change by `session`. Returns its effect, if it has one, and the sequence of a created node, or -1.
    ///
    /// # Errors
    /// The error of the servers.
    pub fn check(&self, session: i64, change: &Change) -> Result<(Option<Effect>, i64), Error> {
        let effect = match change {
            Change::Exists(path) => return self.data(path).map(|_| (None, -1)),
            Change::Create { path, data, is_ephemeral } => {
                let parent = self.nodes.get(parent(path)).ok_or(Error::NoNode)?;
                let (owner, sequence) = if *is_ephemeral {
                    let repeated = i64::try_from(parent.children.len()).unwrap_or(i64::MAX);
                    let sequence =
                        if self.repeats_sequences { repeated } else { parent.stat.cversion.into() };
                    (session, sequence)
                } else {
                    (0, -1)
                };
                let path = if *is_ephemeral { format!("{path}{sequence:010}") } else { path.clone() };
                if self.nodes.contains_key(&path) {
                    return Err(Error::NodeExists);
                }
                return Ok((Some(Effect::Create(path, data.clone(), owner)), sequence));
            }
            Change::Write { path, data, version } => {
                let (_, stat) = self.data(path)?;
                if version.is_some_and(|version| version != stat.version) {
                    return Err(Error::BadVersion);
                }
                Effect::Write(path.clone(), data.clone())
            }
            Change::Delete(path) => {
                let node = self.nodes.get(path).ok_or(Error::NoNode)?;
                if !node.children.is_empty() {
                    return Err(Error::NotEmpty);
                }
                Effect::Delete(path.clone())
            }
        };
        Ok((Some(effect), -1))
    }

    /// Applies the effects of the transaction `zxid`, and returns the events on nodes.
    pub fn apply(&mut self, zxid: i64, effects: &[Effect]) -> Vec<(EventType, String)> {
        self.zxid = zxid;
        effects.iter().map(|effect| self.apply_one(zxid, effect)).collect()
    }

    fn apply_one(&mut self, zxid: i64, effect: &Effect) -> (EventType, String) {
        match effect {
            Effect::Create(path, data, owner) => {
                self.nodes.insert(path.clone(), Node::new(data.clone(), zxid, *owner));
                if let Some(parent) = self.nodes.get_mut(parent(path)) {
                    parent.stat.cversion += 1;
                    parent.children.insert(name(path).to_owned());
                }
                (EventType::NodeCreated, path.clone())
            }
            Effect::Write(path, data) => {
                if let Some(node) = self.nodes.get_mut(path) {
                    node.data.clone_from(data);
                    node.stat.version += 1;
                    node.stat.mzxid = zxid;
                }
                (EventType::NodeDataChanged, path.clone())
            }
            Effect::Delete(path) => {
                self.nodes.remove(path);
                if let Some(parent) = self.nodes.get_mut(parent(path)) {
                    parent.children.remove(name(path));
                }
                (EventType::NodeDeleted, path.clone())
            }
        }
    }
}

impl Node {
    fn new(data: Vec<u8>, zxid: i64, owner: i64) -> Self {
        let stat = Stat {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: owner,
            data_length: 0,
            num_children: 0,
        };
        Self { data, stat, children: BTreeSet::new() }
    }

    fn state(&self) -> Stat {
        let count = |count| i32::try_from(count).unwrap_or(i32::MAX);
        let (data_length, num_children) = (count(self.data.len()), count(self.children.len()));
        Stat { data_length, num_children, ..self.stat }
    }
}

/// Returns the path of the parent of a node.
#[must_use]
pub fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

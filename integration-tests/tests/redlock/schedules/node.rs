//! The nodes of a schedule: the real scripts, run by a real server. Each node has keys of its own there, and its time is
//! the schedule's.

use redis::{Client, Connection};

/// How long a lease lasts, in the schedule's time.
pub(super) const TTL: u64 = 1000;

const COMMON: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/common.lua");
const PROPOSE: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/propose.lua");
const RENEW: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/renew.lua");
const RELEASE: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/release.lua");

/// A change of one script: a bug to plant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) script: Script,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Propose,
    Renew,
    Release,
}

/// A request's id.
pub(super) type Id = [u8; 16];

/// What a node is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Propose(Id, u64),
    /// The last is the moment when it was begun.
    Renew(Id, u64, u64),
    /// Give the vote again, if it is lost.
    BringBack(Id, u64),
    Release(Id, u64),
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    Yes(u64),
    /// It may have forgotten.
    Young,
    Held,
    Stale(u64),
    No,
}

/// Some nodes.
pub(super) struct Nodes {
    server: Connection,
    hashes: [String; 3],
    prefix: String,
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// When the lock there runs out, if there is one.
    ends: Option<u64>,
    /// Since when it has a vote.
    grown_up: u64,
}

impl Nodes {
    pub(super) fn new(url: &str, prefix: &str, count: usize, changes: &[Change]) -> Self {
        let mut server = Client::open(url).unwrap().get_connection().unwrap();
        let scripts = [(Script::Propose, PROPOSE), (Script::Renew, RENEW), (Script::Release, RELEASE)];
        let hashes = scripts.map(|(script, text)| {
            let mut text = text.to_owned();
            for change in changes.iter().filter(|change| change.script == script) {
                assert_eq!(text.matches(change.from).count(), 1, "plant it anew: {change:?}");
                text = text.replace(change.from, change.to);
            }
            redis::cmd("SCRIPT").arg("LOAD").arg(format!("{COMMON}{text}")).query(&mut server).unwrap()
        });
        Self { server, hashes, prefix: prefix.to_owned(), nodes: vec![Node::default(); count] }
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) const fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Begins anew, with nothing kept.
    pub(super) fn clear(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.forget(node));
        self.nodes.fill(Node::default());
    }

    /// `node` loses all it keeps, and has a vote again at `grown_up`.
    pub(super) fn restart(&mut self, node: usize, grown_up: u64) {
        self.forget(node);
        self.nodes[node] = Node { ends: None, grown_up };
    }

    /// On how many nodes a lock is held, whether its time is up or not.
    pub(super) fn locked(&mut self) -> usize {
        let keys = (0..self.nodes.len()).map(|node| self.keys(node)[0].clone()).collect::<Vec<_>>();
        redis::cmd("EXISTS").arg(keys).query(&mut self.server).unwrap()
    }

    /// `node` does as it is told, at this moment.
    pub(super) fn tell(&mut self, node: usize, call: Call, now: u64) -> Vote {
        let keys = self.keys(node);
        if self.nodes[node].ends.take_if(|ends| *ends <= now).is_some() {
            redis::cmd("DEL").arg(&keys[0]).exec(&mut self.server).unwrap();
        }
        let (hash, id, number) = match &call {
            Call::Propose(id, number) => (&self.hashes[0], id, number),
            Call::Renew(id, number, _) | Call::BringBack(id, number) => (&self.hashes[1], id, number),
            Call::Release(id, number) => (&self.hashes[2], id, number),
        };
        let mut command = redis::cmd("EVALSHA");
        command.arg(hash).arg(keys.len()).arg(keys.as_slice()).arg(id).arg(number);
        // No key runs out by itself meanwhile.
        match call {
            Call::Propose(..) => command.arg(600_000).arg(900_000).arg("owner").arg("").arg("").arg(5000),
            Call::Renew(..) => command.arg(600_000).arg(900_000).arg("owner").arg("").arg(0),
            Call::BringBack(..) => command.arg(600_000).arg(900_000).arg("owner").arg("").arg(1),
            Call::Release(..) => command.arg(900_000).arg("").arg("name"),
        };
        let [word, number, _, _]: [i64; 4] = command.query(&mut self.server).unwrap();
        let number = u64::try_from(number).unwrap();
        if matches!(call, Call::Release(..)) {
            return Vote::Yes(0);
        }
        match word {
            1 => {
                self.nodes[node].ends = Some(now + TTL);
                if self.nodes[node].grown_up <= now { Vote::Yes(number) } else { Vote::Young }
            }
            0 => Vote::Held,
            2 => Vote::Stale(number),
            4 => Vote::No,
            other => panic!("{call:?}: {other}"),
        }
    }

    fn forget(&mut self, node: usize) {
        redis::cmd("DEL").arg(self.keys(node).as_slice()).exec(&mut self.server).unwrap();
    }

    fn keys(&self, node: usize) -> [String; 3] {
        ["r", "n", "w"].map(|kind| format!("{{{}-{node}}}:{kind}:name", self.prefix))
    }
}

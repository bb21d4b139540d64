//! The servers of a schedule: the real scripts, run by a real server. Each has its own keys there, and its time is the
//! schedule's.

use redis::{Client, Connection};

/// The duration of a lease, in the schedule's milliseconds.
pub(super) const TTL: u64 = 1000;

/// The time when a message expires, in microseconds: a message of a schedule is as late as the schedule wants.
const NEVER: i64 = i64::MAX;

macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("../../../../../crates/polylock-redis/src/redlock/scripts/", $file))
    };
}

/// A change of one script: a bug to plant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) script: Script,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Membership,
    Propose,
    KeepAlive,
    Release,
    Break,
}

/// A request's id.
pub(super) type Id = [u8; 16];

/// The part of a message from which a server determines if its votes count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MembershipArgs {
    /// The run of the server that the client is connected to. Empty if restarts are trusted.
    pub(super) run: String,
    pub(super) observed: String,
}

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Propose {
        id: Id,
        number: i64,
        withdrawn: i64,
    },
    /// Extends a vote; restores it if `restores` is true.
    Renew {
        id: Id,
        number: i64,
        restores: bool,
    },
    Release {
        id: Id,
        number: i64,
    },
    /// Marks the vote for this number.
    Break {
        number: i64,
    },
}

/// A server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeReply {
    pub(super) vote: Vote,
    /// See `scripts/membership.lua`.
    pub(super) membership: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    Yes(i64),
    Held,
    Stale(i64),
    No,
    Marked,
}

/// Some servers.
pub(super) struct Nodes {
    server: Connection,
    hashes: [String; 4],
    prefix: String,
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// The time at which its vote expires, if it has one.
    expires_at: Option<u64>,
    runs: u64,
}

impl Nodes {
    pub(super) fn new(url: &str, prefix: &str, count: usize, changes: &[Change]) -> Self {
        let mut server = Client::open(url).unwrap().get_connection().unwrap();
        let text = |script: Script, text: &str| {
            let mut text = text.to_owned();
            for change in changes.iter().filter(|change| change.script == script) {
                assert_eq!(text.matches(change.from).count(), 1, "plant it anew: {change:?}");
                text = text.replace(change.from, change.to);
            }
            text
        };
        let first = text(Script::Membership, lua!("membership.lua")) + lua!("common.lua");
        let scripts = [
            text(Script::Propose, lua!("propose.lua")),
            text(Script::KeepAlive, lua!("keep_alive.lua")),
            text(Script::Release, lua!("release.lua")),
            text(Script::Break, lua!("break.lua")),
        ];
        let hashes = scripts.map(|own| {
            redis::cmd("SCRIPT").arg("LOAD").arg(format!("{first}{own}")).query(&mut server).unwrap()
        });
        Self { server, hashes, prefix: prefix.to_owned(), nodes: vec![Node::default(); count] }
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Deletes all data.
    pub(super) fn clear(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.forget(node));
        self.nodes.fill(Node::default());
    }

    /// Returns the run id of the server process.
    pub(super) fn run(&self, node: usize) -> String {
        format!("run{}", self.nodes[node].runs)
    }

    /// Restarts `node` without its data.
    pub(super) fn restart(&mut self, node: usize) {
        self.nodes[node].runs += 1;
        self.forget(node);
    }

    /// Deletes the data of `node`.
    pub(super) fn forget(&mut self, node: usize) {
        self.nodes[node].expires_at = None;
        redis::cmd("DEL").arg(self.keys(node).as_slice()).exec(&mut self.server).unwrap();
    }

    /// Confirms all servers: their votes count.
    pub(super) fn confirm(&mut self) {
        for node in 0..self.nodes.len() {
            let member = format!("confirmed {} 0 nonce 0", self.run(node));
            redis::cmd("SET").arg(&self.keys(node)[4]).arg(member).exec(&mut self.server).unwrap();
        }
    }

    /// Returns the number of servers with a vote, expired or not, for this request or for any.
    pub(super) fn locked(&mut self, of: Option<Id>) -> usize {
        let votes = (0..self.nodes.len()).filter(|node| {
            let vote: Option<Vec<u8>> =
                redis::cmd("GET").arg(&self.keys(*node)[0]).query(&mut self.server).unwrap();
            vote.is_some_and(|vote| of.is_none_or(|id| vote.starts_with(&id)))
        });
        votes.count()
    }

    /// Executes a message at `node` at the time `now`.
    pub(super) fn receive(
        &mut self,
        node: usize,
        call: Call,
        member: &MembershipArgs,
        now: u64,
    ) -> NodeReply {
        let keys = self.keys(node);
        if self.nodes[node].expires_at.take_if(|expires_at| *expires_at <= now).is_some() {
            redis::cmd("DEL").arg(&keys[0]).exec(&mut self.server).unwrap();
        }
        let hash = match call {
            Call::Propose { .. } => &self.hashes[0],
            Call::Renew { .. } => &self.hashes[1],
            Call::Release { .. } => &self.hashes[2],
            Call::Break { .. } => &self.hashes[3],
        };
        let mut command = redis::cmd("EVALSHA");
        let keys: Vec<&String> = match call {
            // A batch of one.
            Call::Renew { .. } => keys.iter().take(3).chain(keys.last()).collect(),
            _ => keys.iter().collect(),
        };
        command.arg(hash).arg(keys.len()).arg(&keys);
        if matches!(call, Call::Propose { .. } | Call::Renew { .. }) {
            command.arg(&member.run).arg(0).arg(&member.observed);
        }
        // No key expires by itself during the test.
        match call {
            Call::Propose { id, number, withdrawn } => {
                command.arg(&id).arg(number).arg(withdrawn).arg(600_000).arg(900_000);
                command.arg("owner").arg("").arg("").arg(5000)
            }
            Call::Renew { id, number, restores } => {
                command.arg(900_000).arg(u8::from(restores));
                command.arg(&id).arg(number).arg(600_000).arg("owner").arg("")
            }
            Call::Release { id, number } => {
                command.arg(&id).arg(number).arg(900_000).arg("").arg("name").arg(NEVER)
            }
            Call::Break { number } => {
                command.arg(number).arg(900_000).arg("name").arg("notice").arg(0).arg("channel").arg(NEVER)
            }
        };
        let (word, number, membership) = if let Call::Renew { number, .. } = call {
            type Reply = (i64, i64, i64, i64, String, Vec<(i64, String)>);
            let (.., membership, outcomes): Reply = command.query(&mut self.server).unwrap();
            (outcomes[0].0, number, membership)
        } else {
            type Reply = (i64, i64, i64, i64, String, String);
            let (word, number, _, _, membership, _): Reply = command.query(&mut self.server).unwrap();
            (word, number, membership)
        };
        let vote = match word {
            1 => Vote::Yes(number),
            0 => Vote::Held,
            2 => Vote::Stale(number),
            4 => Vote::No,
            5 => Vote::Marked,
            other => panic!("{call:?}: {other}"),
        };
        match (call, vote) {
            (Call::Release { .. }, Vote::Yes(_)) => self.nodes[node].expires_at = None,
            (Call::Propose { .. } | Call::Renew { .. }, Vote::Yes(_)) => {
                self.nodes[node].expires_at = Some(now + TTL);
            }
            _ => {}
        }
        NodeReply { vote, membership }
    }

    fn keys(&self, node: usize) -> [String; 5] {
        let prefix = format!("{{{}-{node}}}", self.prefix);
        ["r", "n", "b", "w", "member"].map(|kind| format!("{prefix}:{kind}"))
    }
}

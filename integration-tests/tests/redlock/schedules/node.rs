//! The servers of a schedule: the real scripts, run by a real server. Each has keys of its own there, and its time is the
//! schedule's.

use redis::{Client, Connection};

/// How long a lease lasts, in the schedule's milliseconds.
pub(super) const TTL: u64 = 1000;

macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("../../../../crates/polylock-redis/src/redlock/scripts/", $file))
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

/// The part of a message by which a server knows whether its votes count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Member {
    /// The run of the server that the client is connected to. Empty if restarts are trusted.
    pub(super) run: String,
    pub(super) observed: String,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Propose {
        id: Id,
        number: i64,
        withdrawn: i64,
    },
    /// Extends a vote; gives it again if it `restores`.
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

/// What a server replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
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
    /// When the vote there expires, if there is one.
    ends: Option<u64>,
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

    /// Begins anew, with nothing kept.
    pub(super) fn clear(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.forget(node));
        self.nodes.fill(Node::default());
    }

    /// The run id of the server process.
    pub(super) fn run(&self, node: usize) -> String {
        format!("run{}", self.nodes[node].runs)
    }

    /// `node` is restarted without its data.
    pub(super) fn restart(&mut self, node: usize) {
        self.nodes[node].runs += 1;
        self.forget(node);
    }

    /// `node` loses its data.
    pub(super) fn forget(&mut self, node: usize) {
        self.nodes[node].ends = None;
        redis::cmd("DEL").arg(self.keys(node).as_slice()).exec(&mut self.server).unwrap();
    }

    /// All servers are in use: their votes count.
    pub(super) fn confirm(&mut self) {
        for node in 0..self.nodes.len() {
            let member = format!("confirmed {} 0 nonce 0", self.run(node));
            redis::cmd("SET").arg(&self.keys(node)[4]).arg(member).exec(&mut self.server).unwrap();
        }
    }

    /// On how many servers there is a vote, expired or not: of this request, or of any.
    pub(super) fn locked(&mut self, of: Option<Id>) -> usize {
        let votes = (0..self.nodes.len()).filter(|node| {
            let vote: Option<Vec<u8>> =
                redis::cmd("GET").arg(&self.keys(*node)[0]).query(&mut self.server).unwrap();
            vote.is_some_and(|vote| of.is_none_or(|id| vote.starts_with(&id)))
        });
        votes.count()
    }

    /// `node` carries out a message at this moment.
    pub(super) fn receive(&mut self, node: usize, call: Call, member: &Member, now: u64) -> Answer {
        let keys = self.keys(node);
        if self.nodes[node].ends.take_if(|ends| *ends <= now).is_some() {
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
        // No key expires by itself meanwhile.
        match call {
            Call::Propose { id, number, withdrawn } => {
                command.arg(&id).arg(number).arg(withdrawn).arg(600_000).arg(900_000);
                command.arg("owner").arg("").arg("").arg(5000)
            }
            Call::Renew { id, number, restores } => {
                command.arg(900_000).arg(u8::from(restores));
                command.arg(&id).arg(number).arg(600_000).arg("owner").arg("")
            }
            Call::Release { id, number } => command.arg(&id).arg(number).arg(900_000).arg("").arg("name"),
            Call::Break { number } => {
                command.arg(number).arg(900_000).arg("name").arg("notice").arg(0).arg("channel")
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
            (Call::Release { .. }, Vote::Yes(_)) => self.nodes[node].ends = None,
            (Call::Propose { .. } | Call::Renew { .. }, Vote::Yes(_)) => {
                self.nodes[node].ends = Some(now + TTL);
            }
            _ => {}
        }
        Answer { vote, membership }
    }

    fn keys(&self, node: usize) -> [String; 5] {
        let prefix = format!("{{{}-{node}}}", self.prefix);
        ["r", "n", "b", "w", "member"].map(|kind| format!("{prefix}:{kind}"))
    }
}

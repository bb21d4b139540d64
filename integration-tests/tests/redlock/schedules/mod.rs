//! Thousands of random orders of events: messages that come late, twice, in another order or never, clients that give up
//! at any moment, nodes that forget. The nodes run the real scripts, and the schedule decides when they hear of what. The
//! clients follow the same rules as the library's, without its sockets and timers; each rule can be broken.
//!
//! Time is the schedule's, and the same for all, so that exclusion is to be had in full.

mod client;
mod node;

use polylock_core::Mode;
use polylock_integration_tests::servers::redis;
use polylock_testkit::history::{self, Section};

use client::{Client, State};
use node::{Call, Change, Nodes, Script, TTL, Vote};

/// How clients and nodes behave.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// A failed attempt is taken back.
    undoes: bool,
    /// A majority is one of all nodes, not of those that have answered.
    of_all: bool,
    /// A vote for a number that was taken back does not count.
    skips_undone: bool,
    /// Nodes forget.
    restarts: bool,
    /// A node that may have forgotten has no vote for as long as a lease lasts.
    delays: bool,
    /// Tokens are numbers that each node counts by itself, of which the client takes the greatest.
    counts: bool,
    changes: &'static [Change],
}

const SOUND: Rules = Rules {
    undoes: true,
    of_all: true,
    skips_undone: true,
    restarts: false,
    delays: true,
    counts: false,
    changes: &[],
};

/// Splitmix64, so that a schedule can be had again from its seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }
}

/// On its way.
#[derive(Debug, Clone, Copy)]
struct Message {
    client: usize,
    node: usize,
    call: Call,
    /// The answer, if it goes back.
    answer: Option<Vote>,
}

/// What all schedules of one kind came to.
#[derive(Debug, Default)]
struct Outcome {
    schedules: u64,
    grants: usize,
    renewals: u64,
    retries: u64,
    restarts: u64,
    /// The first thing that went wrong, with its seed.
    wrong: Option<(u64, String)>,
}

struct Schedule<'n> {
    rules: Rules,
    random: Random,
    now: u64,
    nodes: &'n mut Nodes,
    clients: Vec<Client>,
    net: Vec<Message>,
    sections: Vec<Section>,
    restarts: u64,
}

impl Schedule<'_> {
    fn run(&mut self) {
        for _ in 0..70 * self.nodes.count() {
            self.now += 1 + self.random.below(10);
            match self.random.below(100) {
                0..72 => self.deliver(true),
                72..76 => drop(self.pick(true)),
                76..95 => {
                    let client = self.random.index(self.clients.len());
                    self.act(client);
                }
                95..99 => self.now += TTL / 4 + self.random.below(TTL),
                _ if self.rules.restarts => self.restart(),
                _ => {}
            }
            self.deadlines();
        }
    }

    /// All comes to rest: everybody gives back what they have, and nothing gets lost any more.
    fn end(&mut self) {
        for client in 0..self.clients.len() {
            self.stop(client);
        }
        loop {
            while !self.net.is_empty() {
                self.now += 1;
                self.deliver(false);
            }
            for client in 0..self.clients.len() {
                self.ask_back(client);
            }
            if self.net.is_empty() {
                break;
            }
        }
    }

    fn pick(&mut self, spare: bool) -> Option<Message> {
        if self.net.is_empty() {
            return None;
        }
        let at = self.random.index(self.net.len());
        // Sent again, because its answer did not come.
        let twice = spare && self.net[at].answer.is_none() && self.random.percent(5);
        Some(if twice { self.net[at] } else { self.net.swap_remove(at) })
    }

    fn deliver(&mut self, twice: bool) {
        let Some(message) = self.pick(twice) else { return };
        match message.answer {
            None => {
                let vote = self.nodes.tell(message.node, message.call, self.now);
                self.net.push(Message { answer: Some(vote), ..message });
            }
            Some(vote) => self.hear(message, vote),
        }
    }

    /// A node forgets. What was on its way to it and from it is lost: no connection outlives a server.
    fn restart(&mut self) {
        let node = self.random.index(self.nodes.count());
        self.net.retain(|message| message.node != node);
        self.nodes.restart(node, if self.rules.delays { self.now + TTL } else { 0 });
        self.restarts += 1;
    }

    fn send(&mut self, client: usize, call: Call) {
        let all = 0..self.nodes.count();
        self.net.extend(all.map(|node| Message { client, node, call, answer: None }));
    }

    fn section(&mut self, client: usize, released: Option<u64>) {
        let State::Holds { invoked, acquired, token, deadline, .. } = self.clients[client].state else {
            return;
        };
        let name = client.to_string();
        let section = Section::new("name", name, Mode::Exclusive, invoked..acquired).token(token);
        let section = section.deadline(deadline);
        self.sections.push(match released {
            Some(at) => section.released(at),
            None => section,
        });
    }

    /// What is wrong with what has happened.
    fn verdict(&mut self) -> Vec<String> {
        let mut found = history::overlaps(&self.sections);
        found.extend(history::token_regressions(&self.sections));
        found.extend(history::repeated_tokens(&self.sections));
        let left = self.nodes.locked();
        let left = (left > 0).then(|| format!("left behind: a lock on {left} nodes"));
        found.iter().map(ToString::to_string).chain(left).collect()
    }
}

/// Runs schedules from seed 0 on until something with these words goes wrong.
fn run(nodes: usize, clients: usize, schedules: u64, rules: Rules, words: &str) -> Outcome {
    // Nothing is to survive it, so it need not be on the disk.
    let server = redis::start(&[]).unwrap();
    let mut nodes = Nodes::new(server.url(), &server.name(), nodes, rules.changes);
    let mut outcome = Outcome::default();
    for seed in 0..schedules {
        nodes.clear();
        let mut schedule = Schedule {
            rules,
            random: Random(seed),
            now: TTL,
            nodes: &mut nodes,
            clients: (0..clients).map(Client::new).collect(),
            net: Vec::new(),
            sections: Vec::new(),
            restarts: 0,
        };
        schedule.run();
        schedule.end();
        let verdict = schedule.verdict();
        outcome.schedules += 1;
        outcome.grants += schedule.sections.len();
        outcome.renewals += schedule.clients.iter().map(|client| client.renewals).sum::<u64>();
        outcome.retries += schedule.clients.iter().map(|client| client.retries).sum::<u64>();
        outcome.restarts += schedule.restarts;
        if let Some(wrong) = verdict.into_iter().find(|wrong| wrong.contains(words)) {
            outcome.wrong = Some((seed, wrong));
            break;
        }
    }
    outcome
}

#[test]
fn no_schedule_breaks_exclusion_or_the_order_of_tokens_or_leaves_anything() {
    for (nodes, clients, schedules) in [(3, 2, 400), (3, 3, 200), (5, 3, 150)] {
        for restarts in [false, true] {
            let outcome = run(nodes, clients, schedules, Rules { restarts, ..SOUND }, "");
            println!("{nodes} nodes, {clients} clients: {outcome:?}");
            assert_eq!(outcome.wrong, None);
            // Or it proves nothing.
            assert!(outcome.grants as u64 > schedules && outcome.renewals > 10 && outcome.retries > 100);
            assert_eq!(outcome.restarts > 100, restarts);
        }
    }
}

/// Broken rules are found out, each by what it breaks.
fn is_found(what: &str, clients: usize, rules: Rules) {
    let outcome = run(3, clients, 4000, rules, what);
    println!("{outcome:?}");
    assert_ne!(outcome.wrong, None, "nobody notices");
}

#[test]
fn planted_a_majority_of_those_that_answer_is_found() {
    is_found("overlap", 2, Rules { of_all: false, ..SOUND });
}

#[test]
fn planted_votes_that_nobody_takes_back_are_found() {
    is_found("left behind", 2, Rules { undoes: false, ..SOUND });
}

#[test]
fn planted_nodes_that_forget_and_vote_at_once_are_found() {
    is_found("overlap", 2, Rules { restarts: true, delays: false, ..SOUND });
}

#[test]
fn planted_a_release_that_lets_late_proposals_in_is_found() {
    is_found(
        "left behind",
        2,
        Rules {
            changes: &[Change { script: Script::Release, from: "accept(number + 1, keep)", to: "" }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_release_without_comparing_is_found() {
    is_found(
        "overlap",
        2,
        Rules {
            changes: &[Change { script: Script::Release, from: "if is_of(id) and", to: "if value and" }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_late_release_that_takes_a_later_proposal_is_found() {
    is_found(
        "overlap",
        2,
        Rules {
            changes: &[Change {
                script: Script::Release,
                from: "(number == 0 or entry[1] <= number)",
                to: "true",
            }],
            ..SOUND
        },
    );
}

#[test]
fn planted_a_vote_that_is_taken_back_and_counts_is_found() {
    is_found("overlap", 2, Rules { skips_undone: false, ..SOUND });
}

#[test]
fn planted_a_renewal_after_the_release_is_found() {
    is_found(
        "left behind",
        2,
        Rules { changes: &[Change { script: Script::Renew, from: " and last <= number", to: "" }], ..SOUND },
    );
}

#[test]
fn planted_a_number_that_is_not_greater_and_accepted_is_found() {
    is_found(
        "token",
        3,
        Rules {
            changes: &[Change {
                script: Script::Propose,
                from: "if number <= last then",
                to: "if false then",
            }],
            ..SOUND
        },
    );
}

#[test]
fn planted_tokens_that_nodes_count_by_themselves_are_found() {
    const COUNTS: &[Change] = &[
        Change {
            script: Script::Propose,
            from: "ARGV[1], tonumber(ARGV[2]),",
            to: "ARGV[1], redis.call('INCR', LAST),",
        },
        Change { script: Script::Release, from: "accept(number + 1, keep)", to: "" },
    ];
    is_found("token repeated", 3, Rules { counts: true, changes: COUNTS, ..SOUND });
}

/// A request's vote for 10 was taken back, but the node has not heard of it. Meanwhile others have accepted its 20, and
/// this node is asked to extend that; whether it keeps it when the release of 10 comes at last.
fn keeps_what_it_has_extended(changes: &[Change]) -> bool {
    let server = redis::start(&[]).unwrap();
    let mut nodes = Nodes::new(server.url(), "n", 1, changes);
    let id = [7; 16];
    let said = [Call::Propose(id, 10), Call::Renew(id, 20, 0), Call::Release(id, 10)]
        .map(|call| nodes.tell(0, call, 0));
    assert_eq!(said[..2], [Vote::Yes(10), Vote::Yes(20)]);
    nodes.locked() == 1
}

#[test]
fn a_late_release_leaves_an_older_vote_that_was_extended() {
    assert!(keeps_what_it_has_extended(&[]));
    // Planted: it stays a vote for the number before, and says that it is one for this.
    let from = "        entry[1] = number\n        redis.call('SET', LOCK, id .. cmsgpack.pack(entry))";
    let older = Change { script: Script::Renew, from, to: "entry[1] = number" };
    assert!(!keeps_what_it_has_extended(&[older]));
}

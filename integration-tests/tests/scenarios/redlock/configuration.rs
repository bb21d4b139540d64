//! Programs with different lists of servers, or different settings, which the servers compare.

use std::{collections::BTreeSet, time::Duration};

use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, now, pause},
    load::{self, Load},
    refusals::describe,
    servers::{self, PrivateServer, redis},
};

use super::setup::config;

/// The settings of a fleet with short leases: the servers forget a program four seconds after its end.
const FLEET: &str = "polylock.max_ttl=1s&polylock.ttl=1s";

fn start(count: usize) -> Vec<PrivateServer> {
    tokio::task::block_in_place(|| servers::redlock::start(count, &[])).unwrap()
}

/// Returns the URL of these of the servers.
fn url(servers: &[PrivateServer], list: &[usize], options: &str) -> String {
    let urls = list.iter().map(|server| servers[*server].url());
    format!("{}?{options}", servers::redlock::url(urls))
}

/// Opens the store, and returns the reason of a server that has refused it.
async fn refusal(url: &str) -> String {
    let error = Locks::connect(url).await.expect_err("it is refused");
    assert!(!error.is_temporary(), "{error:?}");
    describe(&error).1
}

/// Waits until the servers have forgotten the programs with short leases.
async fn until_forgotten() {
    pause(Duration::from_millis(4200)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_with_other_settings_are_refused_until_the_first_ones_have_ended() {
    let servers = start(3);
    let list = [0, 1, 2];
    let locks = Locks::connect(&url(&servers, &list, FLEET)).await.unwrap();
    // It is in use from its first claim.
    Locks::connect(&url(&servers, &list, "polylock.max_ttl=60s")).await.unwrap();
    locks.lock("n").try_acquire().await.unwrap_err();
    let text = refusal(&url(&servers, &list, "polylock.max_ttl=60s")).await;
    let [ours, other] = ["this program has polylock.max_ttl=1m", "has polylock.max_ttl=1s and"];
    assert!(text.contains(ours) && text.contains(other) && text.contains("4s after its end"), "{text}");
    let text =
        refusal(&url(&servers, &list, "polylock.max_ttl=1s&polylock.ttl=1s&polylock.restart=trust")).await;
    assert!(text.contains("polylock.restart=trust") && text.contains("polylock.restart=delay"), "{text}");
    // It runs for longer than a record of it lasts.
    clock::until("the votes of the new servers count", async || locks.lock("n").try_acquire().await.is_ok())
        .await;
    let guard = locks.lock("n").acquire().await.unwrap();
    until_forgotten().await;
    refusal(&url(&servers, &list, "polylock.max_ttl=60s")).await;
    guard.release().await.unwrap();
    drop(locks);
    until_forgotten().await;
    Locks::connect(&url(&servers, &list, "polylock.max_ttl=60s")).await.unwrap();
}

/// 1. Two programs with lists that share one server are started together: the servers are new, and may be in both lists.
/// 2. When the servers are known, the second list to be sent is refused. Its program claims no more.
/// 3. It can't be started again while the other one runs.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_lists_without_a_common_majority_one_is_refused() {
    let servers = start(5);
    let urls = [[0, 1, 2], [2, 3, 4]].map(|list| url(&servers, &list, FLEET));
    let mut programs = Vec::new();
    for url in &urls {
        programs.push(Some(Locks::connect(url).await.unwrap()));
    }
    let until = now() + Duration::from_secs(30);
    let (index, text) = 'found: loop {
        for (index, program) in programs.iter().enumerate() {
            let outcome = program.as_ref().unwrap().lock("n").try_acquire().await;
            if let Some(error) = outcome.err().filter(|error| !error.is_temporary()) {
                break 'found (index, describe(&error).1);
            }
        }
        assert!(now() < until, "none is refused");
        pause(Duration::from_millis(10)).await;
    };
    let shared = format!("with 127.0.0.1:{}: a majority", servers[2].port());
    assert!(text.contains(&shared) && text.contains("by one server at a time"), "{text}");
    assert!(text.contains("a list of 3 servers") && text.contains("has one of 3"), "{text}");
    drop(programs[index].take());
    let other = programs[1 - index].take().unwrap();
    clock::until("the other one is recorded", async || {
        // Both may have been refused.
        !other.lock("n").try_acquire().await.is_err_and(|error| !error.is_temporary())
    })
    .await;
    assert!(refusal(&urls[index]).await.contains(&shared));
    drop(other);
    until_forgotten().await;
    Locks::connect(&urls[index]).await.unwrap();
}

/// Five servers, and two lists of three that share one of them.
struct Overlapping {
    servers: Vec<PrivateServer>,
    urls: [String; 2],
    /// Has the first list, which is recorded.
    first: Locks,
}

impl Overlapping {
    /// Waits until the servers are known, and their votes count.
    async fn start() -> Self {
        let servers = start(5);
        let urls = [[0, 1, 2], [2, 3, 4]].map(|list| url(&servers, &list, FLEET));
        // Each server has an identity from its first message.
        let first = Locks::connect(&urls[0]).await.unwrap();
        Locks::connect(&urls[1]).await.unwrap();
        pause(Duration::from_millis(8500)).await;
        acquire_and_release(&first).await;
        Self { servers, urls, first }
    }
}

async fn acquire_and_release(locks: &Locks) {
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
}

/// 1. A program claims nothing for so long that the servers forget its list.
/// 2. Another one with a list that shares one server begins, and is granted the lock.
/// 3. The first program claims it again: its list is compared before that.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_was_idle_is_compared_before_its_next_claim() {
    let Overlapping { urls, first, servers: _servers } = Overlapping::start().await;
    until_forgotten().await;
    let other = Locks::connect(&urls[1]).await.unwrap();
    let held = other.lock("n").acquire().await.unwrap();
    let error = first.lock("n").try_acquire().await.expect_err("it is refused");
    assert!(!error.is_temporary() && describe(&error).1.contains("by one server at a time"), "{error:?}");
    held.release().await.unwrap();
}

/// However often it is started.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_one_server_refuses_is_recorded_by_none() {
    let Overlapping { urls, first, servers } = Overlapping::start().await;
    for _ in 0..3 {
        refusal(&urls[1]).await;
    }
    for server in &servers[3..] {
        let mut connection = redis::connect(server.url()).await.unwrap();
        let lists = ::redis::cmd("EXISTS").arg("{polylock}:member:lists").query_async(&mut connection).await;
        assert_eq!(lists, Ok(0));
    }
    acquire_and_release(&first).await;
}

/// The steps of the documentation: a server is added or removed at a time, while programs with the list before and the list after compete.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_grows_and_shrinks_while_programs_run() {
    let servers = start(5);
    let lists: [&[usize]; 5] = [&[0, 1, 2], &[0, 1, 2, 3], &[0, 1, 2, 3, 4], &[1, 2, 3, 4], &[1, 3, 4]];
    let url = |step: usize| url(&servers, lists[step], FLEET);
    let first = config(&url(0)).operation_timeout(Duration::from_secs(5));
    polylock_redis::redlock::admit(first).await.unwrap();
    let (mut sections, mut skips) = (Vec::new(), 0);
    for step in 0..4 {
        let mut stores = Vec::new();
        for at in [step, step + 1] {
            for _ in 0..2 {
                stores.push(Locks::connect(&url(at)).await.unwrap());
            }
        }
        // A new server counts after two seconds.
        let outcome = Load { min_holds: 200, ..load::one("n", Duration::from_secs(3)) };
        let outcome = outcome.on(stores, async {}).await;
        outcome.assert_consistent();
        for store in 0..4 {
            assert!(outcome.of(store) > 0, "program {store} of step {step} makes progress");
        }
        // Four servers with one replaced have three of five in common.
        if step > 0 && !agree(set(lists[step - 1]), set(lists[step + 1])) {
            let text = refusal(&url(step - 1)).await;
            assert!(text.contains("by one server at a time"), "{text}");
            skips += 1;
        }
        sections.extend(outcome.sections);
        until_forgotten().await;
    }
    assert_eq!(skips, 2, "from 3 servers to 5, and from 5 to 3");
    let tokens: Vec<_> = sections.iter().map(|section| section.token).collect();
    assert!(tokens.iter().collect::<BTreeSet<_>>().len() == tokens.len(), "a token twice");
}

/// Sends lists to the script of a server.
struct Server {
    connection: ::redis::aio::MultiplexedConnection,
    script: ::redis::Script,
}

/// The part of a reply that says what the server has done.
type Reply = (i64, i64, i64, i64, String, String);

impl Server {
    async fn of(server: &PrivateServer) -> Self {
        let script = concat!(
            include_str!("../../../../crates/polylock-redis/src/redlock/scripts/membership.lua"),
            include_str!("../../../../crates/polylock-redis/src/redlock/scripts/member.lua")
        );
        let connection = redis::connect(server.url()).await.unwrap();
        Self { connection, script: ::redis::Script::new(script) }
    }

    /// Sends a list in the name of a program that has seen `observed` of the server's membership.
    async fn send(&mut self, list: &str, run: &str, observed: &str, step: &str, expiry: i64) -> Reply {
        let mut call = self.script.key("member");
        let call =
            call.arg(run).arg("-").arg(observed).arg(list).arg(60_000).arg("fresh").arg(step).arg(expiry);
        call.invoke_async(&mut self.connection).await.unwrap()
    }

    async fn accepts(&mut self, list: &[u32], size: usize) -> bool {
        let known: Vec<String> = list.iter().map(|id| format!("s{id}")).collect();
        let list = format!("delay:1000 {size} {}", known.join(","));
        self.send(&list, "", "", "record", i64::MAX).await.0 == 1
    }

    async fn forget(&mut self) {
        ::redis::cmd("FLUSHALL").exec_async(&mut self.connection).await.unwrap();
    }
}

/// Returns the sets of `servers`, each a bit of a number, that have `count` members.
fn sets(servers: u32, count: u32) -> impl Iterator<Item = u32> {
    (0_u32..=servers).filter(move |set| set & !servers == 0 && set.count_ones() == count)
}

/// Returns true if each majority of one list shares a server with each majority of the other one.
fn agree(one: u32, other: u32) -> bool {
    let majorities = |list: u32| sets(list, list.count_ones() / 2 + 1);
    majorities(one).all(|majority| majorities(other).all(|second| majority & second != 0))
}

fn set(list: &[usize]) -> u32 {
    list.iter().map(|server| 1 << server).sum()
}

fn members(set: u32) -> Vec<u32> {
    (0..32).filter(|server| set >> server & 1 == 1).collect()
}

/// All pairs of lists of 3 to 5 out of 6 servers, of which a server knows some.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_accepts_two_lists_if_their_majorities_share_a_server() {
    const ALL: u32 = 0b11_1111;
    let server = start(1).remove(0);
    let mut server = Server::of(&server).await;
    let (mut accepted, mut refused) = (0, 0);
    for (size, other_size) in (3..=5).flat_map(|one| (3..=5).map(move |other| (one, other))) {
        // By symmetry, the first list has the first servers.
        let one = (1 << size) - 1;
        for other in sets(ALL, other_size) {
            // The servers that are not known: none, one of each list, or two of the second one.
            for (hidden, other_hidden) in [(0, 0), (1, 1), (0, 2), (2, 0)] {
                let known = one & !((1 << hidden) - 1);
                let other_known: Vec<u32> = members(other).into_iter().skip(other_hidden).collect();
                let other_known: u32 = other_known.iter().map(|server| 1 << server).sum();
                // In the best case. A server that is unknown here may also be one of no other list.
                let may_agree = sets(ALL, size).filter(|list| list & known == known).any(|list| {
                    sets(ALL, other_size)
                        .filter(|other| other & other_known == other_known)
                        .any(|other| agree(list, other))
                });
                server.forget().await;
                assert!(server.accepts(&members(known), size as usize).await);
                let accepts = server.accepts(&members(other_known), other_size as usize).await;
                assert_eq!(
                    accepts,
                    may_agree,
                    "{:?} of {size} and {:?} of {other_size}",
                    members(known),
                    members(other_known)
                );
                if accepts { accepted += 1 } else { refused += 1 }
            }
        }
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 100 && refused > 100, "{accepted} and {refused}");
    // A list that was refused is not recorded.
    server.forget().await;
    assert!(server.accepts(&[1, 2, 3], 3).await && !server.accepts(&[3, 4, 5], 3).await);
    assert!(server.accepts(&[1, 2, 3, 4], 4).await && server.accepts(&[1, 2, 3], 3).await);
}

/// A program with a smaller `max_ttl` would end the delay too early: it is refused, or has only compared its list so far.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_program_whose_list_is_recorded_ends_the_delay_of_a_server() {
    let server = start(1).remove(0);
    let mut server = Server::of(&server).await;
    let ours = "delay:60000 3 ";
    let (.., member, _) = server.send(ours, "run", "n0 - 0 61000", "record", i64::MAX).await;
    let nonce = member.split(' ').next().unwrap().to_owned();
    let small = format!("n1 {nonce} 11000 11000");
    for step in ["compare", "record"] {
        let (code, .., member, other) = server.send("delay:10000 3 ", "run", &small, step, i64::MAX).await;
        assert_eq!((code, &*other), (7, ours));
        assert!(member.starts_with(&format!("{nonce} 0 ")), "{member}");
    }
    let (code, .., member, _) = server.send(ours, "run", &small, "compare", i64::MAX).await;
    assert!(code == 1 && member.starts_with(&format!("{nonce} 0 ")), "{member}");
    let large = format!("n1 {nonce} 61000 61000");
    let (code, .., member, _) = server.send(ours, "run", &large, "record", i64::MAX).await;
    assert_eq!((code, &*member), (1, ""));
}

/// A server that is started with an earlier clock keeps no list for longer than it would have, and a late copy of a message records none.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_ends_in_its_time_whatever_the_clock_of_the_server() {
    let server = start(1).remove(0);
    let mut server = Server::of(&server).await;
    let lists = "member:lists";
    let ends = async |connection: &mut ::redis::aio::MultiplexedConnection| -> Vec<String> {
        ::redis::cmd("HVALS").arg(lists).query_async(connection).await.unwrap()
    };
    let (code, ..) = server.send("delay:60000 3 a,b", "run", "n0 - 0 61000", "record", 1).await;
    assert_eq!((code, ends(&mut server.connection).await), (6, vec![]));
    server.send("delay:60000 3 a,b", "run", "n0 - 0 61000", "record", i64::MAX).await;
    // As if the clock had been ahead by an hour.
    let later = 4_102_444_800_000_000_u64;
    let value = format!("{later} 60000000");
    ::redis::cmd("HSET")
        .arg(lists)
        .arg("delay:60000 3 a,b")
        .arg(value)
        .exec_async(&mut server.connection)
        .await
        .unwrap();
    server.send("", "run", "n0 - 0 61000", "compare", i64::MAX).await;
    let value = ends(&mut server.connection).await.remove(0);
    assert!(value.split(' ').next().unwrap().parse::<u64>().unwrap() < later, "{value}");
    // It was restarted.
    server.send("", "next", "n1 - 0 61000", "compare", i64::MAX).await;
    assert_eq!(ends(&mut server.connection).await, Vec::<String>::new());
}

/// In a store that trusts restarts, the run id need not be known.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_copy_of_anothers_data_is_refused() {
    let servers = start(3);
    let options = format!("{FLEET}&polylock.restart=trust");
    let url = url(&servers, &[0, 1, 2], &options);
    let locks = Locks::connect(&url).await.unwrap();
    locks.lock("n").try_acquire().await.unwrap();
    let connection = async |server: usize| redis::connect(servers[server].url()).await.unwrap();
    let identity: String = ::redis::cmd("GET")
        .arg("{polylock}:member:identity")
        .query_async(&mut connection(0).await)
        .await
        .unwrap();
    ::redis::cmd("SET")
        .arg("{polylock}:member:identity")
        .arg(identity)
        .exec_async(&mut connection(1).await)
        .await
        .unwrap();
    let began = now();
    clock::until("they are known", async || {
        locks.lock("n").try_acquire().await.is_err_and(|error| {
            !error.is_temporary() && describe(&error).1.contains("one has a copy of the other's data")
        })
    })
    .await;
    println!("after {:?}", now().since(began));
    let text = refusal(&url).await;
    let names = [0, 1].map(|server| format!("127.0.0.1:{}", servers[server].port()));
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
}

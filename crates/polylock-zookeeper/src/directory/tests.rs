//! The knowledge of a session about the children of one lock, under every order of the replies.

use super::*;
use crate::nodes::{Guid, requests};
use proptest::prelude::*;

/// The nodes on the servers, and the replies that are in flight.
#[derive(Default)]
struct Servers {
    next: i64,
    children: Vec<Child>,
    replies: Vec<Reply>,
}

enum Reply {
    Created(Child, u64),
    Listed(u64, Vec<Child>),
    Deleted(Rank),
}

impl Servers {
    fn create(&mut self, mode: Mode) -> Child {
        let (guid, sequence) = (Guid::random(), self.next);
        self.next += 1;
        let name = format!("{guid}_{}_{sequence:010}", mode.code());
        let child = Child { name, guid, mode, sequence };
        self.children.push(child.clone());
        child
    }

    fn list(&self) -> Vec<Child> {
        requests(self.children.iter().map(|child| child.name.clone()).collect())
    }

    fn has(&self, rank: Rank) -> bool {
        self.children.iter().any(|child| child.rank() == rank)
    }

    fn delete(&mut self, rank: Rank) {
        self.children.retain(|child| child.rank() != rank);
    }

    /// Returns true if no earlier request conflicts with it.
    fn admits(&self, one: &Child) -> bool {
        !self.children.iter().any(|other| other.rank() < one.rank() && other.mode.conflicts_with(one.mode))
    }
}

fn directory() -> Arc<Directory> {
    Arc::<Directories>::default().enter("/n".to_owned())
}

fn apply_reply(directory: &Directory, reply: Reply, own: &mut Vec<Child>) {
    match reply {
        Reply::Created(child, number) => {
            directory.join(&child, number);
            own.push(child);
        }
        Reply::Listed(number, children) => directory.apply(number, &children),
        Reply::Deleted(rank) => directory.remove(rank),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Requests of this session and of others come and go, other programs delete nodes, the lock's node is deleted and created again,
    /// and replies are processed in any order.
    #[test]
    fn only_admissible_requests_are_first_and_each_becomes_first(
        steps in prop::collection::vec((0..10_u8, any::<prop::sample::Index>(), prop::sample::select(&Mode::ALL[..])), 1..80),
    ) {
        let (directory, mut servers, mut own) = (directory(), Servers::default(), Vec::<Child>::new());
        for (step, index, mode) in steps {
            let chosen = (!own.is_empty()).then(|| own[index.index(own.len().max(1))].clone());
            match (step, chosen) {
                (0 | 1, _) => {
                    let servers = std::cell::RefCell::new(&mut servers);
                    let (number, child, list) = directory.send_create(
                        mode, false, || servers.borrow_mut().create(mode), || servers.borrow().list(),
                    );
                    let servers = servers.into_inner();
                    servers.replies.push(Reply::Created(child, number));
                    servers.replies.extend(list.map(|(number, list)| Reply::Listed(number, list)));
                }
                (2, _) => drop(servers.create(mode)),
                // A request of another session leaves, or another program deletes a request of this session.
                (3, _) if !servers.children.is_empty() => {
                    let at = index.index(servers.children.len());
                    servers.children.remove(at);
                }
                (4, _) if servers.children.is_empty() => servers.next = 0,
                (5 | 6, _) if !servers.replies.is_empty() => {
                    let at = index.index(servers.replies.len());
                    apply_reply(&directory, servers.replies.remove(at), &mut own);
                }
                (7, Some(child)) => {
                    own.retain(|other| other.guid != child.guid);
                    servers.delete(child.rank());
                    servers.replies.push(Reply::Deleted(child.rank()));
                }
                (8 | 9, Some(child)) => match directory.position(&child, false) {
                    None => {
                        let (number, list) = directory.send_list(|| servers.list());
                        servers.replies.push(Reply::Listed(number, list));
                    }
                    Some(Position::First) if servers.has(child.rank()) => {
                        prop_assert!(servers.admits(&child), "{child:?} of {:?}", servers.children);
                    }
                    Some(Position::Gone) => {
                        prop_assert!(!servers.has(child.rank()));
                        own.retain(|other| other.guid != child.guid);
                    }
                    Some(Position::Behind { last, .. }) if !servers.has(last.rank()) => {
                        directory.remove(last.rank());
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        for reply in std::mem::take(&mut servers.replies) {
            apply_reply(&directory, reply, &mut own);
        }
        for child in own.iter().filter(|child| servers.has(child.rank())) {
            let mut lists = 0;
            loop {
                match directory.position(child, false) {
                    None => {
                        lists += 1;
                        let (number, list) = directory.send_list(|| servers.list());
                        directory.apply(number, &list);
                    }
                    Some(Position::Behind { last, .. }) if !servers.has(last.rank()) => {
                        directory.remove(last.rank());
                    }
                    Some(Position::First) => break prop_assert!(servers.admits(child)),
                    Some(Position::Behind { .. }) => break prop_assert!(!servers.admits(child)),
                    Some(Position::Gone) => prop_assert!(false, "its node exists"),
                }
            }
            prop_assert!(lists < 2);
        }
    }
}

#[test]
fn a_request_behind_another_of_its_session_is_not_listed_until_that_is_gone() {
    let (directory, mut servers) = (directory(), Servers::default());
    let join = |servers: &mut Servers| {
        let child = servers.create(Mode::Exclusive);
        let (number, (), list) = directory.send_create(Mode::Exclusive, false, || (), || servers.list());
        directory.join(&child, number);
        let listed = list.map(|(number, list)| directory.apply(number, &list)).is_some();
        (child, listed)
    };
    let (first, listed) = join(&mut servers);
    assert!(listed && matches!(directory.position(&first, false), Some(Position::First)));
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let (child, listed) = join(&mut servers);
            assert!(!listed);
            child
        })
        .collect();
    let Some(Position::Behind { ahead: None, last: Predecessor::Own(last, removed) }) =
        directory.position(&waiting[0], false)
    else {
        panic!("it is not queued");
    };
    assert!(last == first && removed.clone().now_or_never().is_none());
    directory.remove(first.rank());
    assert!(removed.now_or_never().is_some(), "it is woken");
    servers.delete(first.rank());
    assert!(directory.position(&waiting[0], false).is_none(), "a list is needed");
    let (number, list) = directory.send_list(|| servers.list());
    directory.apply(number, &list);
    for child in &waiting {
        assert!(matches!(directory.position(child, false), Some(Position::First)), "one list serves all");
        directory.remove(child.rank());
    }
}

#[test]
fn nodes_are_checked_when_unused_and_rarely_while_others_use_them() {
    let directories = Arc::<Directories>::default();
    let [a, b] = ["/a", "/b"].map(|path| directories.enter(path.to_owned()));
    assert!(Arc::ptr_eq(&a, &directories.enter("/a".to_owned())));
    directories.add_created("/a");
    drop(b);
    let soon = SystemClock.now() + CHECK_PAUSES.0 * 2;
    assert!(
        directories.take_unused(soon).0.is_empty(),
        "one is in use, and the other belongs to another session"
    );
    drop(a);
    let mut pause = CHECK_PAUSES.0;
    while pause < CHECK_PAUSES.1 {
        let now = SystemClock.now();
        let (taken, next) = directories.take_unused(now + CHECK_PAUSES.1 * 2);
        let [(path, check)] = &taken[..] else { panic!("{taken:?}") };
        assert_eq!((path.as_str(), next, check.pause), ("/a", None, pause));
        assert!(directories.take_unused(now + CHECK_PAUSES.1 * 2).0.is_empty());
        directories.check_again(path.clone(), *check);
        pause = (pause * 2).min(CHECK_PAUSES.1);
    }
    assert!(directories.used().is_empty());
}

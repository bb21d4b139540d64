//! A ZooKeeper ensemble.

use std::{collections::HashSet, time::Duration};

use polylock_integration_tests::{
    clock,
    servers::{
        Server,
        zookeeper::{self, Ensemble},
        zookeeper_ensemble,
    },
};

use super::{
    family::is_port_closed,
    session::{Session, stored},
};

/// Starts an ensemble with stored data.
async fn start(settings: &[&str]) -> Ensemble {
    let ensemble = zookeeper::ensemble(3, settings).unwrap();
    Session::open(ensemble.url()).await.unwrap().store().await.unwrap();
    ensemble
}

/// Checks that every member except `without` replies and has the stored data.
async fn assert_all_store(ensemble: &Ensemble, without: Option<usize>) {
    for (index, member) in ensemble.members().iter().enumerate() {
        if Some(index) != without {
            // A member accepts no session while it takes part in an election.
            clock::until("the member serves", async || Session::open(member.url()).await.is_ok()).await;
            assert_eq!(stored(member.url()).await, "seven", "member {index}");
        }
    }
}

#[tokio::test]
async fn the_url_names_all_members() {
    let ensemble = start(&[]).await;
    let hosts: Vec<String> =
        ensemble.members().iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
    assert_eq!(ensemble.url(), format!("zookeeper://{}", hosts.join(",")));
    assert_eq!(hosts.iter().collect::<HashSet<_>>().len(), 3);
    assert_all_store(&ensemble, None).await;
}

#[tokio::test]
async fn the_ensemble_works_without_its_leader_which_rejoins() {
    let ensemble = start(&[]).await;
    for _ in 0..2 {
        let leader = ensemble.leader();
        ensemble.members()[leader].kill();
        assert!(is_port_closed(ensemble.members()[leader].url()));
        assert_ne!(ensemble.leader(), leader, "another one leads");
        assert_all_store(&ensemble, Some(leader)).await;
        let mut session = Session::open(ensemble.url()).await.unwrap();
        assert_eq!(session.stored().await.unwrap(), "seven");

        ensemble.members()[leader].restart();
        assert_all_store(&ensemble, None).await;
        assert_ne!(ensemble.leader(), leader, "it follows");
    }
}

#[tokio::test]
async fn the_ensemble_works_without_a_frozen_leader_which_then_follows() {
    let ensemble = start(&["syncLimit=5"]).await;
    let leader = ensemble.leader();
    ensemble.members()[leader].freeze();
    let next = ensemble.leader();
    assert_ne!(next, leader);
    assert_all_store(&ensemble, Some(leader)).await;
    ensemble.members()[leader].thaw();
    let thawed = ensemble.members()[leader].url();
    clock::until("it follows", async || Session::open(thawed).await.is_ok()).await;
    assert_all_store(&ensemble, None).await;
    assert_eq!(ensemble.leader(), next);
}

#[tokio::test]
async fn an_ensemble_without_a_majority_is_restarted_as_a_whole() {
    let ensemble = start(&[]).await;
    let mut session = Session::open(ensemble.members()[0].url()).await.unwrap();
    ensemble.members()[1].kill();
    ensemble.members()[2].kill();
    assert!(session.is_dead().await, "a member without a majority accepts a session");
    ensemble.restart();
    assert_all_store(&ensemble, None).await;
}

#[tokio::test]
async fn all_tests_of_a_process_share_an_ensemble() {
    let shared = [(); 2].map(|()| zookeeper_ensemble().unwrap());
    assert!(std::ptr::eq(shared[0], shared[1]));
    assert_eq!(shared[0].url().split(',').count(), 3);
    let name = Server::name(shared[0]);
    assert_ne!(name, shared[1].name());
    let mut session = Session::open(shared[0].url()).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(9), session.echo()).await;
    assert_eq!(answer.unwrap().unwrap(), "it");
}

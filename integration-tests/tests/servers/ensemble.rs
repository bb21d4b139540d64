//! ZooKeepers that are one.

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
    family::nobody_listens,
    session::{Session, kept},
};

/// One that keeps something.
async fn started(settings: &[&str]) -> Ensemble {
    let ensemble = zookeeper::ensemble(3, settings).unwrap();
    Session::open(ensemble.url()).await.unwrap().keep().await.unwrap();
    ensemble
}

/// Every member but those `without` answers, and has what is kept.
async fn all_keep(ensemble: &Ensemble, without: Option<usize>) {
    for (index, member) in ensemble.members().iter().enumerate() {
        if Some(index) != without {
            assert_eq!(kept(member.url()).await, "seven", "member {index}");
        }
    }
}

#[tokio::test]
async fn its_url_names_all_members() {
    let ensemble = started(&[]).await;
    let hosts: Vec<String> =
        ensemble.members().iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
    assert_eq!(ensemble.url(), format!("zookeeper://{}", hosts.join(",")));
    assert_eq!(hosts.iter().collect::<HashSet<_>>().len(), 3);
    all_keep(&ensemble, None).await;
}

#[tokio::test]
async fn it_goes_on_without_its_leader_who_comes_back() {
    let ensemble = started(&[]).await;
    for _ in 0..2 {
        let leader = ensemble.leader();
        ensemble.members()[leader].kill();
        assert!(nobody_listens(ensemble.members()[leader].url()));
        assert_ne!(ensemble.leader(), leader, "another one leads");
        all_keep(&ensemble, Some(leader)).await;
        let mut session = Session::open(ensemble.url()).await.unwrap();
        assert_eq!(session.kept().await.unwrap(), "seven");

        ensemble.members()[leader].restart();
        all_keep(&ensemble, None).await;
        assert_ne!(ensemble.leader(), leader, "it follows");
    }
}

#[tokio::test]
async fn it_goes_on_without_a_frozen_leader_who_then_follows() {
    let ensemble = started(&["syncLimit=5"]).await;
    let leader = ensemble.leader();
    ensemble.members()[leader].freeze();
    let next = ensemble.leader();
    assert_ne!(next, leader);
    all_keep(&ensemble, Some(leader)).await;
    ensemble.members()[leader].thaw();
    let thawed = ensemble.members()[leader].url();
    clock::until("it follows", async || Session::open(thawed).await.is_ok()).await;
    all_keep(&ensemble, None).await;
    assert_eq!(ensemble.leader(), next);
}

#[tokio::test]
async fn one_that_has_lost_its_majority_is_restarted_as_a_whole() {
    let ensemble = started(&[]).await;
    let mut session = Session::open(ensemble.members()[0].url()).await.unwrap();
    ensemble.members()[1].kill();
    ensemble.members()[2].kill();
    assert!(session.is_dead().await, "a member alone lets nobody in");
    ensemble.restart();
    all_keep(&ensemble, None).await;
}

#[tokio::test]
async fn all_tests_of_a_process_share_one() {
    let shared = [(); 2].map(|()| zookeeper_ensemble().unwrap());
    assert!(std::ptr::eq(shared[0], shared[1]));
    assert_eq!(shared[0].url().split(',').count(), 3);
    let name = Server::name(shared[0]);
    assert_ne!(name, shared[1].name());
    let mut session = Session::open(shared[0].url()).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(9), session.echo()).await;
    assert_eq!(answer.unwrap().unwrap(), "it");
}

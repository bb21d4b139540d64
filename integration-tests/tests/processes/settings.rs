//! Servers with settings under which locks can't be kept: the store is refused by the name of the setting. The program `settings` also runs
//! the conformance suite under the others, each alone.

use polylock_integration_tests::settings::Lane;

macro_rules! lanes {
    ($($store:ident)*) => {
        $(mod $store {
            #[tokio::test(flavor = "multi_thread")]
            async fn is_refused_by_name_where_locks_can_not_be_kept() {
                super::is_refused(stringify!($store)).await;
            }
        })*

        #[test]
        fn every_lane_has_tests() {
            let tested = [$(stringify!($store)),*];
            assert_eq!(tested, polylock_integration_tests::settings::LANES.map(|lane| lane.store));
        }
    };
}
lanes! { postgres mariadb redis zookeeper }

async fn is_refused(store: &str) {
    let lane = Lane::of(store).unwrap();
    let settings = lane.settings();
    assert!(settings.len() >= 15, "{}", settings.len());
    let refused: Vec<_> = settings.iter().filter(|setting| setting.refused.is_some()).collect();
    assert!(!refused.is_empty());
    for setting in refused {
        if let Err(problem) = lane.check(setting).await {
            panic!("{setting:?}: {problem}");
        }
    }
}

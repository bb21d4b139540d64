//! Servers with settings that break other programs: locks work under all of them, or the store is refused by the name of the setting. The
//! program `settings` checks each setting alone.

use polylock_integration_tests::settings::{Lane, Suite};

macro_rules! lanes {
    ($($store:ident)*) => {
        $(mod $store {
            #[tokio::test(flavor = "multi_thread")]
            async fn keeps_its_promises_under_all_settings_together() {
                super::keeps_its_promises(stringify!($store)).await;
            }

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

async fn keeps_its_promises(store: &str) {
    let lane = Lane::of(store).unwrap();
    lane.check(&lane.together(), Suite::Quick).await.unwrap();
}

async fn is_refused(store: &str) {
    let lane = Lane::of(store).unwrap();
    let settings = lane.settings();
    assert!(settings.len() >= 15, "{}", settings.len());
    let refused: Vec<_> = settings.iter().filter(|setting| setting.refused.is_some()).collect();
    assert!(!refused.is_empty());
    for setting in refused {
        if let Err(problem) = lane.check(setting, Suite::Quick).await {
            panic!("{setting:?}: {problem}");
        }
    }
}

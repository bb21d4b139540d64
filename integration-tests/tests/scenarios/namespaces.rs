//! Namespaces for a program that tests a store: they are deleted with everything in them, and nothing else is.

use std::time::Duration;

use polylock::{StoreConfig, StoreUrl, core::Locks, read_url};
use polylock_integration_tests::targets::{self, Objects};

const SOON: Duration = Duration::from_secs(5);

async fn open(config: &dyn StoreConfig, namespace: &str) -> Locks {
    Locks::new(config.in_namespace(namespace).unwrap().open().await.unwrap())
}

/// Deletes a namespace in which a lock is held, beside one with a similar name.
async fn a_namespace_is_deleted_alone(target: &str) {
    let target = targets::create(target).await.unwrap();
    let (_, config) = read_url(&StoreUrl::parse(target.url()).unwrap()).unwrap();
    let name = format!("deleted_{:08x}", fastrand::u32(..));
    let other = format!("{name}_not");
    let of_name = Objects { begin: &name, except: &other };
    let of_other = Objects { begin: &other, except: "-" };

    let (locks, kept) = (open(&*config, &name).await, open(&*config, &other).await);
    locks.lock("left").acquire().await.unwrap().leave_to_expire().unwrap();
    let guard = kept.lock("kept").acquire().await.unwrap();
    assert_ne!(target.count(of_name).await, Some(0), "nothing is counted");
    locks.close(SOON).await;
    let before = target.count(of_other).await;
    config.delete_namespaces(std::slice::from_ref(&name)).await.unwrap();
    assert_eq!(target.count(of_name).await.unwrap_or(0), 0);
    // The vote of a slow node of a Redlock may arrive in between.
    assert!(target.count(of_other).await >= before, "the other namespace has lost something");
    assert_eq!(kept.inspect("kept").await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();

    // The next one with the name is empty, and both are deleted although one of them does not exist any more.
    let again = open(&*config, &name).await;
    assert!(again.list("").await.unwrap().is_empty());
    again.close(SOON).await;
    kept.close(SOON).await;
    config.delete_namespaces(&[name.clone(), other.clone(), format!("{name}_never")]).await.unwrap();
    assert_eq!(target.count(of_name).await.unwrap_or(0), 0);
    assert_eq!(target.count(of_other).await.unwrap_or(0), 0);
}

macro_rules! tests {
    ($($target:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $target() {
            super::a_namespace_is_deleted_alone(stringify!($target)).await;
        })*
    };
}

mod of {
    tests! {
        sqlite_full postgres mariadb postgres_pessimistic mariadb_pessimistic redis redis_cluster redis_sentinel redlock3
        zookeeper azure
    }
}

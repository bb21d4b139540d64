//! The stores that several processes can use, and tests of several processes on each of them.

use polylock::Locks;
use polylock_testkit::Missing;

use crate::{
    clock::until,
    targets::{self, Namespace},
};

/// Calls the macro `$then` with the names of all stores that several processes can use, and the further tokens. This is the only list.
///
/// It contains the [targets](mod@crate::targets) except memory, which belongs to one process; SQLite with less durability,
/// Valkey, a Redlock with more nodes or with dead ones, and a ZooKeeper with more servers, which make no difference to other
/// processes; and the pessimistic strategies, which have their own tests: a lock that ends with its connection has no lease.
#[macro_export]
macro_rules! stores {
    ($then:ident $($more:tt)*) => {
        $then! { [sqlite_full postgres mariadb redis redlock3 zookeeper azure] $($more)* }
    };
}

/// Calls the macro `$then` with the stores that keep a queue of waiters: all except Redlock and Azure.
#[macro_export]
macro_rules! queues {
    ($then:ident $($more:tt)*) => {
        $then! { [sqlite_full postgres mariadb redis zookeeper] $($more)* }
    };
}

/// Generates a test for each of these functions on each of the stores, in a module with the name of the store. The function takes
/// that name.
#[macro_export]
macro_rules! on_stores {
    ([$($store:ident)*] $tests:tt) => {
        $(on_stores! { @ $store $tests })*
    };
    (@ $store:ident [$($test:ident)*]) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                if $crate::stores::is_available(stringify!($store)).await {
                    super::$test(stringify!($store)).await;
                }
            })*
        }
    };
    ($($test:ident)*) => {
        $crate::stores! { on_stores [$($test)*] }
    };
}

/// Generates a test on each of the stores that keep a queue, in a module with the name of the store below `queues`.
#[macro_export]
macro_rules! on_queues {
    ($($test:ident)*) => {
        mod queues {
            use super::{$($test),*};
            use $crate::on_stores;
            $crate::queues! { on_stores [$($test)*] }
        }
    };
}

/// Returns true if the server of this store is available; prints a message if it is not.
///
/// # Panics
/// If it is missing, and `POLYLOCK_TEST_REQUIRE` is `all`.
pub async fn is_available(store: &str) -> bool {
    match targets::create(store).await {
        Ok(_) => true,
        Err(Missing(why)) => {
            let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
            assert!(!required, "{store} is required by POLYLOCK_TEST_REQUIRE and missing: {why}");
            eprintln!("missing: {store}: {why}");
            false
        }
    }
}

/// Creates a new namespace in this store, for one test.
///
/// # Panics
/// If the store is not available.
pub async fn namespace(store: &str) -> Namespace {
    targets::create(store).await.unwrap_or_else(|Missing(why)| panic!("{store}: {why}"))
}

/// Waits until `count` requests wait for the lock.
///
/// # Panics
/// If they don't within [`TIMEOUT`](crate::clock::TIMEOUT).
pub async fn wait_for_waiters(locks: &Locks, name: &str, count: usize) {
    until(&format!("{count} wait for {name}"), async || {
        locks.inspect(name).await.is_ok_and(|lock| lock.waiters.len() == count)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use polylock_core::Order;
    use polylock_testkit::Target as _;

    use super::*;

    macro_rules! names {
        ([$($store:ident)*]) => {
            [$(stringify!($store)),*]
        };
    }

    #[test]
    fn every_target_that_processes_can_share_is_listed() {
        let alone = [
            "memory",
            "sqlite_normal",
            "postgres_pessimistic",
            "mariadb_pessimistic",
            "valkey",
            "redis_cluster",
            "redlock5",
            "redlock5_two_dead",
            "zookeeper_ensemble",
            "both_memory",
            "both_sqlite_redis",
            "http_sqlite",
            "http_postgres",
            "http_redis",
        ];
        let shared: Vec<&str> =
            targets::NAMES.iter().copied().filter(|target| !alone.contains(target)).collect();
        assert_eq!(crate::stores!(names), shared[..]);
    }

    #[tokio::test]
    async fn the_stores_with_a_queue_grant_in_order_of_arrival() {
        let mut queues = Vec::new();
        for store in crate::stores!(names) {
            let has_queue = if is_available(store).await {
                let opened = namespace(store).await.connect().await.expect("the store is available");
                opened.backend.capabilities().order == Order::Fifo
            } else {
                crate::queues!(names).contains(&store)
            };
            if has_queue {
                queues.push(store);
            }
        }
        assert_eq!(crate::queues!(names), queues[..]);
    }
}

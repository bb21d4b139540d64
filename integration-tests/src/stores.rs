//! The stores that processes share, and tests of several processes on each of them.

use polylock_testkit::Missing;

use crate::targets::{self, Spot};

/// Calls the macro `$then` with the names of all stores that processes share, and what follows. This is the one list.
///
/// Of the [targets](mod@crate::targets) it has all but memory, which no other process reaches; SQLite with less durability,
/// Valkey, a Redlock with more nodes or with dead ones, and a ZooKeeper with more servers, which make no difference to other
/// processes; and the pessimistic strategies, which have tests of their own: whose lock ends with its connection has no lease
/// to run out.
#[macro_export]
macro_rules! stores {
    ($then:ident $($more:tt)*) => {
        $then! { [sqlite_full postgres mariadb redis redlock3 zookeeper azure] $($more)* }
    };
}

/// The same of those that keep a queue of waiters: all but a Redlock, whose nodes know none, and Azure.
#[macro_export]
macro_rules! queues {
    ($then:ident $($more:tt)*) => {
        $then! { [sqlite_full postgres mariadb redis zookeeper] $($more)* }
    };
}

/// Makes a test of each of these functions on each of the stores, in a module of the store's name. The function takes that
/// name.
#[macro_export]
macro_rules! on_stores {
    ([$($store:ident)*] $tests:tt) => {
        $(on_stores! { @ $store $tests })*
    };
    (@ $store:ident [$($test:ident)*]) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                if $crate::stores::is_there(stringify!($store)).await {
                    super::$test(stringify!($store)).await;
                }
            })*
        }
    };
    ($($test:ident)*) => {
        $crate::stores! { on_stores [$($test)*] }
    };
}

/// The same on each of the stores that keep a queue, in a module of the store's name below `queues`.
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

/// Whether the server of this store is there; says so if it is not.
///
/// # Panics
/// If it is not, and `POLYLOCK_TEST_REQUIRE` says `all`.
pub async fn is_there(store: &str) -> bool {
    match targets::make(store).await {
        Ok(_) => true,
        Err(Missing(why)) => {
            let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
            assert!(!required, "{store} is required and missing: {why}");
            eprintln!("missing: {store}: {why}");
            false
        }
    }
}

/// A place in this store that nothing else uses.
///
/// # Panics
/// If the store is not there.
pub async fn spot(store: &str) -> Spot {
    targets::make(store).await.unwrap_or_else(|Missing(why)| panic!("{store}: {why}"))
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
    fn no_target_that_processes_share_is_left_out() {
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
        ];
        let shared: Vec<&str> =
            targets::NAMES.iter().copied().filter(|target| !alone.contains(target)).collect();
        assert_eq!(crate::stores!(names), shared[..]);
    }

    #[tokio::test]
    async fn who_keeps_a_queue_serves_in_order_of_arrival() {
        let mut queues = Vec::new();
        for store in crate::stores!(names) {
            let keeps_one = if is_there(store).await {
                let opened = spot(store).await.connect().await.expect("it is there");
                opened.backend.capabilities().order == Order::Arrival
            } else {
                crate::queues!(names).contains(&store)
            };
            if keeps_one {
                queues.push(store);
            }
        }
        assert_eq!(crate::queues!(names), queues[..]);
    }
}

//! The floor: a store's own driver, without polylock, for the statements that no lock can do without.

#[cfg(feature = "azure")]
mod azure;
mod client;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redlock;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod table;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use polylock::{Moment, StoreUrl};

pub use self::client::{Floor, RawClient};
use crate::{Result, Times, times::now};

/// The number of pairs of a short measurement, and of those at its start that do not count.
const PAIRS: u32 = 120;
const WARM_UP: u32 = 20;

/// Opens the driver of the store at `url`. Its table, keys, nodes or blobs are those of the namespace `namespace`. Returns `None` if there is
/// no driver that could be compared: the store is in memory, or is not one of polylock, or has no such floor.
///
/// # Errors
/// [`Error::Store`](crate::Error::Store) for an invalid URL, [`Error::Raw`](crate::Error::Raw) if the store can't be used.
///
/// # Cancel safety
/// Dropping the future leaves at most an empty table, which [`remove`] drops.
#[allow(unused_variables, reason = "without features, no store has a driver")]
pub async fn open(url: &StoreUrl, namespace: &str, floor: Floor) -> Result<Option<Box<dyn RawClient>>> {
    Ok(match url.scheme() {
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::open(url, namespace, floor).await?,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres::open(url, namespace, floor).await?,
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => mysql::open(url, namespace, floor).await?,
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "valkey" | "valkeys" | "unix" | "redis+unix" | "valkey+unix" => {
            redis::open(url, namespace, floor).await?
        }
        #[cfg(feature = "redis")]
        "redlock" => redlock::open(url, namespace, floor).await?,
        #[cfg(feature = "zookeeper")]
        "zookeeper" | "zk" | "zookeeper+tls" | "zk+tls" => zookeeper::open(url, namespace, floor).await?,
        #[cfg(feature = "azure")]
        "az" | "azblob" => azure::open(url, namespace, floor).await?,
        _ => None,
    })
}

/// Drops the table of a driver in this namespace. Other objects of a driver are deleted with the namespace.
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// Dropping the future leaves the table.
pub async fn remove(url: &StoreUrl, namespace: &str) -> Result<()> {
    if !matches!(url.scheme(), "sqlite" | "postgres" | "postgresql" | "mysql" | "mariadb") {
        return Ok(());
    }
    match open(url, namespace, Floor::Usual).await? {
        Some(mut client) => client.remove().await,
        None => Ok(()),
    }
}

/// Returns an id like that of a request: as long, and another one each time.
pub(crate) fn owner(time: Moment) -> [u8; 16] {
    u128::from(time.as_nanos()).to_be_bytes()
}

/// Measures some pairs, one after the other.
///
/// # Errors
/// [`Error::Raw`](crate::Error::Raw).
///
/// # Cancel safety
/// Dropping the future may leave the row, key, node or blob of one pair.
pub async fn pairs(client: &mut dyn RawClient) -> Result<Times> {
    let mut times = Times::new();
    for round in 0..PAIRS {
        let began = now();
        client.pair("floor", owner(began)).await?;
        if round >= WARM_UP {
            times.record_since(began);
        }
    }
    Ok(times)
}

/// Measures some round trips; `None` if a hand-over is compared with a pair.
///
/// # Errors
/// [`Error::Raw`](crate::Error::Raw).
///
/// # Cancel safety
/// Dropping the future leaves nothing.
pub async fn trips(client: &mut dyn RawClient) -> Result<Option<Times>> {
    let mut times = Times::new();
    for round in 0..PAIRS {
        let began = now();
        if !client.trip("floor").await? {
            return Ok(None);
        }
        if round >= WARM_UP {
            times.record_since(began);
        }
    }
    Ok(Some(times))
}

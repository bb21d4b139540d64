//! The work of an operator before the first lock: the tables of a store, and the delay of new Redlock servers.

use polylock_core::{ConfigError, Result, url::StoreUrl};

use crate::{fence_schema::FenceSchema, schemes};

/// Returns the statements that create the tables of the store at `url`, for an administrator to run if the program's user may not; `None`
/// for a store that needs none. It does not connect to the store.
///
/// Opening the store runs the same statements automatically if the tables are missing and its user may create them.
///
/// # Errors
/// As [`Locks::connect`](crate::Locks::connect), for an invalid URL.
///
/// ```
/// assert_eq!(polylock::schema("memory:")?, None);
/// # #[cfg(feature = "postgres")] {
/// let statements = polylock::schema("postgres://app@db.example.com/app?polylock.namespace=app_locks")?;
/// assert!(statements.is_some_and(|text| text.contains("app_locks_holds")));
/// # }
/// # Ok::<_, polylock::ConfigError>(())
/// ```
pub fn schema(url: &str) -> Result<Option<String>, ConfigError> {
    schema_at(&StoreUrl::parse(url)?)
}

pub(crate) fn schema_at(url: &StoreUrl) -> Result<Option<String>, ConfigError> {
    schemes::read_url(url)?.1.schema()
}

/// Returns the statements that create a fence in the database at `url`, or the script of a fence for a Redis server, for programs that do
/// not use this library. Only the kind of the server matters, `polylock.namespace`, and `polylock.schema` on PostgreSQL; it does not
/// connect. The locks may be in another store.
///
/// # Errors
/// [`ConfigError`]: on key `store` if the URL is not valid or such a server has no fence, on `table` or `column` if it is not a valid
/// name or does not apply.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use polylock::{FenceSchema, fence_schema};
///
/// let statements = fence_schema("sqlite:app.db", &FenceSchema::default())?;
/// assert!(statements.contains("polylock_fence"));
/// let trigger = fence_schema("sqlite:app.db", &FenceSchema::default().table("orders"))?;
/// assert!(trigger.contains("BEFORE UPDATE ON `orders`"));
/// # }
/// # Ok::<_, polylock::ConfigError>(())
/// ```
pub fn fence_schema(url: &str, fence: &FenceSchema) -> Result<String, ConfigError> {
    schemes::fence(&StoreUrl::parse(url)?, fence)
}

/// Ends the start-up delay of those servers of a Redlock that were never used for locks before, and returns the servers with an ended
/// delay: `polylock_redis::redlock::admit` of the URL's configuration.
///
/// Use it only for servers that are known to be new. A server that has lost its data may have forgotten locks that are still held.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) on key `store` if the URL names another store, and otherwise as
/// [`Locks::connect`](crate::Locks::connect); [`Error::Unavailable`](crate::Error::Unavailable) if a lock is held.
///
/// # Cancel safety
/// Once polled, it is carried out even if it is dropped.
pub async fn admit(url: &str) -> Result<Vec<String>> {
    admit_at(&StoreUrl::parse(url)?).await
}

pub(crate) async fn admit_at(url: &StoreUrl) -> Result<Vec<String>> {
    let (_, config) = schemes::read_url(url)?;
    config.admit().await?.ok_or_else(|| {
        let problem = format!(
            "the servers of a {} store have no start-up delay: only those of redlock do",
            url.scheme()
        );
        ConfigError::new("store", problem).into()
    })
}

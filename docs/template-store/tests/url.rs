//! The store by URL, in a program that registers its scheme.

use polylock::Locks;
use template_store::{Config, NAME};

#[tokio::test]
async fn a_registered_scheme_opens_the_store() -> Result<(), Box<dyn std::error::Error>> {
    polylock::register(NAME, Config::from_url)?;
    let locks = Locks::connect("template:orders?polylock.ttl=10s").await?;
    let guard = locks.lock("42").acquire().await?;
    assert!(locks.lock("42").try_acquire().await?.is_none());
    guard.release().await?;
    assert!(Locks::connect("template:").await.is_err());
    Ok(())
}

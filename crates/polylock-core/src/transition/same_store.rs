//! The check that the two stores are not one.

use std::time::Duration;

use crate::{ClaimOutcome, ConfigError, LockName, Mode, OwnerId, Request, RequestId, Result, Store, io};

use super::capabilities::NAME;

/// The lease of the lock for the check, if its release does not arrive.
const TTL: Duration = Duration::from_secs(5);

/// Checks that `old` and `new` are not one store, whatever names they were opened by: it takes a lock with a random name in the old one, and
/// looks for it in the new one. In one store, every release of the one side would be a loss of the other.
///
/// A store that can't be checked, for example because it is unavailable for the moment, is accepted.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) on key `store` if they are one store.
///
/// # Cancel safety
/// The check runs to its end if the future is dropped, and leaves nothing.
///
/// ```
/// use polylock_core::{Error, memory, transition};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// transition::ensure_distinct(&memory::named("old"), &memory::named("new")).await?;
/// let refused = transition::ensure_distinct(&memory::named("old"), &memory::named("old")).await;
/// assert!(matches!(refused, Err(Error::Config(_))));
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
pub async fn ensure_distinct(old: &Store, new: &Store) -> Result<()> {
    let (old, Some(inspect)) = (old.backend.clone(), new.inspect.clone()) else { return Ok(()) };
    let name =
        LockName::new(format!("polylock/both/{:032x}", u128::from_be_bytes(RequestId::random().to_bytes())))?;
    let range = &old.capabilities().ttl;
    let mut request = Request::new(name, Mode::Exclusive, TTL.clamp(*range.start(), *range.end()));
    (request.owner, request.queues) = (OwnerId::unique(), false);
    let check = async move {
        let is_held = matches!(old.claim(&request).await, Ok(ClaimOutcome::Granted(_)));
        let is_found = is_held
            && inspect
                .inspect(&request.name)
                .await
                .is_ok_and(|lock| lock.holders.iter().any(|holder| holder.owner == request.owner));
        // Without a reply to the claim, it may have been granted.
        old.release(&request).await.ok();
        is_found
    };
    if io::run(NAME, check).await? { Err(one_store().into()) } else { Ok(()) }
}

fn one_store() -> ConfigError {
    let problem = "both:OLD;NEW names one store by two URLs: name the store that is left and the one that replaces it, or use one URL alone";
    ConfigError::new("store", problem)
}

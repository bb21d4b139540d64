//! A hold without a process: its handle, with which any process renews and releases it.

use std::{fmt, str::FromStr, time::Duration};

use crate::{FencingToken, LockName, Mode, Request, RequestId};

/// A hold that belongs to no process. [`Guard::into_handle`](crate::Guard::into_handle) creates it, and [`Locks::adopt`](crate::Locks::adopt)
/// turns it into a guard again, in any process that uses the same store.
///
/// The hold is not renewed meanwhile: it ends with its lease. The handle suffices to release the lock, so it is a secret: `Debug` hides that part,
/// and there is no `Display`; [`to_text`](Self::to_text) is explicit.
///
/// A release refuses late claims of the hold for the time limit of the releasing process, and for 5 s at least. So processes that pass holds
/// to each other, and set `polylock.operation_timeout` to more than 5 s, must set it to the same time.
///
/// ```
/// # use std::time::Duration;
/// use polylock_core::HoldHandle;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
/// let guard = locks.lock("gpu").ttl(Duration::from_secs(2 * 3600)).acquire().await?;
/// let text = guard.into_handle().await?.to_text();
///
/// // Later, in another process.
/// let handle: HoldHandle = text.parse().unwrap();
/// let guard = locks.adopt(&handle).await?;
/// guard.release().await?;
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct HoldHandle {
    id: RequestId,
    name: LockName,
    /// The mode in which the lock was claimed, by which a store may find the hold.
    claimed: Mode,
    /// The mode of the hold when the handle was made.
    mode: Mode,
    ttl: Duration,
    /// The token of the hold when the handle was made.
    token: FencingToken,
}

/// The first part of a text, with the version of its format.
const FORMAT: &str = "hold1";

/// The first part of the text of a slot of a semaphore, which has the number of the slot before the name of the semaphore.
const SLOT_FORMAT: &str = "hold2";

impl HoldHandle {
    pub(crate) fn new(request: &Request, mode: Mode, token: FencingToken) -> Self {
        let Request { id, name, mode: claimed, ttl, .. } = request.clone();
        Self { id, name, claimed, mode, ttl, token }
    }

    /// Returns the same handle after a renewal that gave this lease.
    pub(crate) fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Returns the request, with its lease as TTL.
    pub(crate) fn request(&self, ttl: Duration) -> Request {
        let request = Request::new(self.name.clone(), self.claimed, ttl);
        Request { id: self.id, outlives_process: true, ..request }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub const fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the id of the request, by which the store finds the hold. It is a secret.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the mode of the hold when this handle was made. A conversion since has changed it: the guard of an adoption has the present
    /// one.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the lease of the last renewal, counted from then.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the fencing token of the hold when this handle was made. A conversion since has changed it: the guard of an adoption has the
    /// present one.
    #[must_use]
    pub const fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns the handle as a text, which [`FromStr`] reads: one line without spaces, if the name has none. The name is its last part. It is a
    /// secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        let id = u128::from_be_bytes(self.id.to_bytes());
        let (claimed, mode, ttl, token) = (self.claimed, self.mode, self.ttl.as_millis(), self.token);
        let hold = format!("{claimed}.{mode}.{ttl}.{token}.{id:032x}");
        match self.name.slot() {
            Some((semaphore, slot)) => format!("{SLOT_FORMAT}.{hold}.{slot}.{semaphore}"),
            None => format!("{FORMAT}.{hold}.{}", self.name.as_str()),
        }
    }
}

impl FromStr for HoldHandle {
    type Err = InvalidHandle;

    fn from_str(text: &str) -> Result<Self, InvalidHandle> {
        let parts: Vec<&str> = text.splitn(7, '.').collect();
        let &[format, claimed, mode, ttl, token, id, name] = &parts[..] else { return Err(InvalidHandle) };
        let name = match (format, name.split_once('.')) {
            (FORMAT, _) => LockName::new(name).ok(),
            (SLOT_FORMAT, Some((slot, semaphore))) => {
                slot.parse().ok().and_then(|slot| LockName::of_slot(semaphore, slot).ok())
            }
            _ => None,
        };
        let mode_of = |text: &str| Mode::ALL.into_iter().find(|mode| mode.code() == text);
        let id = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32);
        let handle = (|| {
            Some(Self {
                id: RequestId::from_bytes(id?.to_be_bytes()),
                name: name?,
                claimed: mode_of(claimed)?,
                mode: mode_of(mode)?,
                ttl: Duration::from_millis(ttl.parse().ok()?),
                token: FencingToken::new(token.parse::<i64>().ok()?)?,
            })
        })();
        handle.ok_or(InvalidHandle)
    }
}

impl fmt::Debug for HoldHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldHandle")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .field("ttl", &self.ttl)
            .field("fencing_token", &self.token.get())
            .finish_non_exhaustive()
    }
}

/// The error for a text that is no handle. It does not show the text, which may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not the handle of a hold: pass the text that `acquire` has printed")]
pub struct InvalidHandle;

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> HoldHandle {
        let request = Request::new(
            LockName::new("a.b c/ü").unwrap(),
            Mode::Exclusive,
            Duration::from_millis(7_200_500),
        );
        HoldHandle::new(&request, Mode::Shared, FencingToken::new(42).unwrap())
    }

    #[test]
    fn a_text_converts_back() {
        let handle = handle();
        let text = handle.to_text();
        assert!(text.starts_with("hold1.EX.PR.7200500.42.") && text.ends_with(".a.b c/ü"), "{text}");
        assert_eq!(text.parse(), Ok(handle));
    }

    #[test]
    fn the_text_of_a_slot_converts_back() {
        let slot = LockName::of_slot("a.b", 7).unwrap();
        let handle = HoldHandle { name: slot, ..handle() };
        let text = handle.to_text();
        assert!(text.starts_with("hold2.") && text.ends_with(".7.a.b"), "{text}");
        assert_eq!(text.parse(), Ok(handle));
        for other in [".x.a.b", ".7.", ".1024.a.b", ".a"] {
            assert_eq!(
                text.replacen(".7.a.b", other, 1).parse::<HoldHandle>(),
                Err(InvalidHandle),
                "{other}"
            );
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let text = handle().to_text();
        for (from, to) in [
            ("hold1", "hold2"),
            (".EX.", ".ex."),
            (".42.", ".-1."),
            (".7200500.", ".2h."),
            (".42.", "."),
            (".a.b c/ü", "."),
            (".a.b c/ü", ""),
        ] {
            assert_eq!(text.replacen(from, to, 1).parse::<HoldHandle>(), Err(InvalidHandle), "{to}");
        }
        assert!("".parse::<HoldHandle>().is_err() && "gpu".parse::<HoldHandle>().is_err());
    }

    #[test]
    fn the_secret_part_is_not_shown() {
        let handle = handle();
        let id = format!("{:032x}", u128::from_be_bytes(handle.id.to_bytes()));
        assert!(handle.to_text().contains(&id) && !format!("{handle:?}{handle:#?}").contains(&id));
    }
}

//! Who holds a lock: the public identity that `status` shows and that reentrancy goes by.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use crate::error::ConfigError;

/// A public name for who holds a lock: shown by inspection, and what reentrancy goes by.
///
/// It is no secret and gives no power over the lock: what releases a lock is the secret
/// [`RequestId`](crate::RequestId) of the one request that was granted. An owner is explicit, never a thread or a
/// task: [`unique`](Self::unique) makes one that nobody else has.
///
/// ```
/// use polylock_core::OwnerId;
///
/// let me = OwnerId::unique();                // host:pid/xxxxxxxx
/// let worker = OwnerId::new("worker-7")?;
/// assert_ne!(me, worker);
/// # Ok::<(), polylock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OwnerId(Arc<str>);

/// `host:pid`, once per process.
static PROCESS: LazyLock<Arc<str>> = LazyLock::new(|| {
    let host: String =
        gethostname::gethostname().to_string_lossy().chars().filter(|c| !c.is_control()).take(200).collect();
    format!("{host}:{}", std::process::id()).into()
});

impl OwnerId {
    /// The longest owner, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// An owner named by the caller, 1 to 255 bytes without control characters.
    ///
    /// # Errors
    /// [`ConfigError`] on key `owner` if it is empty, longer, or holds a control character.
    pub fn new(owner: impl AsRef<str>) -> Result<Self, ConfigError> {
        Ok(Self(printable("owner", owner.as_ref(), 1, Self::MAX_BYTES)?.into()))
    }

    /// An owner as another program wrote it to the store: control characters are replaced by U+FFFD, what exceeds
    /// [`MAX_BYTES`](Self::MAX_BYTES) is cut.
    #[must_use]
    pub fn sanitized(owner: &str) -> Self {
        Self(sanitized(owner).into())
    }

    /// This process: `host:pid`. The owner of every request that names none.
    #[must_use]
    pub fn process() -> Self {
        Self(PROCESS.clone())
    }

    /// This process and 64 random bits: `host:pid/0123456789abcdef`.
    #[must_use]
    pub fn unique() -> Self {
        Self(format!("{}/{:016x}", &**PROCESS, crate::request::random_u64()).into())
    }

    /// The owner as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// A free text for people, shown beside the owner: at most 255 bytes without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// Checks `label`.
    ///
    /// # Errors
    /// [`ConfigError`] on key `label` if it is longer than 255 bytes or holds a control character.
    pub fn new(label: impl AsRef<str>) -> Result<Self, ConfigError> {
        Ok(Self(printable("label", label.as_ref(), 0, OwnerId::MAX_BYTES)?.into()))
    }

    /// A label as another program wrote it to the store: control characters are replaced by U+FFFD, what exceeds 255
    /// bytes is cut.
    #[must_use]
    pub fn sanitized(label: &str) -> Self {
        Self(sanitized(label).into())
    }

    /// The label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a character can end a line, or change how the rest of it is shown.
fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` on one line, within the limit.
pub(crate) fn sanitized(text: &str) -> String {
    let mut clean = String::with_capacity(text.len().min(OwnerId::MAX_BYTES));
    for c in text.chars().map(|c| if is_unprintable(c) { char::REPLACEMENT_CHARACTER } else { c }) {
        if clean.len() + c.len_utf8() > OwnerId::MAX_BYTES {
            break;
        }
        clean.push(c);
    }
    clean
}

fn printable<'a>(key: &str, text: &'a str, min: usize, max: usize) -> Result<&'a str, ConfigError> {
    if text.len() < min || text.len() > max {
        return Err(ConfigError::new(key, format!("{} bytes: give it {min} to {max} bytes", text.len())));
    }
    if text.chars().any(is_unprintable) {
        return Err(ConfigError::new(key, "holds a control character: leave it out"));
    }
    Ok(text)
}

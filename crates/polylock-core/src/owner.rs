//! The owner of a lock: the public identity that inspection shows and that reentrancy compares.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use crate::{ConfigError, random::random_u64};

/// The public name of the owner of a lock, which inspection shows and reentrancy compares.
///
/// It is no secret and gives no power over the lock: a release requires the secret [`RequestId`](crate::RequestId) of the request
/// that was granted. An owner is explicit, never a thread or a task; [`unique`](Self::unique) creates one that no other process or
/// caller has.
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

/// `host:pid`, computed once per process.
static PROCESS: LazyLock<Arc<str>> = LazyLock::new(|| {
    let host: String =
        gethostname::gethostname().to_string_lossy().chars().filter(|c| !c.is_control()).take(200).collect();
    format!("{host}:{}", std::process::id()).into()
});

impl OwnerId {
    /// The greatest length of an owner, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Creates an owner from a text of 1 to 255 bytes without control characters.
    ///
    /// # Errors
    /// [`ConfigError`] on key `owner` if the text is empty, longer, or contains a control character.
    pub fn new(owner: impl AsRef<str>) -> Result<Self, ConfigError> {
        Ok(Self(printable("owner", owner.as_ref(), 1, Self::MAX_BYTES)?.into()))
    }

    /// Returns the owner that another program wrote to the store: control characters are replaced by U+FFFD, and it is cut at
    /// [`MAX_BYTES`](Self::MAX_BYTES).
    #[must_use]
    pub fn sanitized(owner: &str) -> Self {
        Self(sanitized(owner).into())
    }

    /// Returns this process as owner: `host:pid`. It is the owner of every request that names none.
    #[must_use]
    pub fn process() -> Self {
        Self(PROCESS.clone())
    }

    /// Returns this process with 64 random bits as owner: `host:pid/0123456789abcdef`.
    #[must_use]
    pub fn unique() -> Self {
        Self(format!("{}/{:016x}", &**PROCESS, random_u64()).into())
    }

    /// Returns true if the owner is a whole process, `host:pid`. Some of its tasks may release locks while others wait.
    pub(crate) fn is_process(&self) -> bool {
        self.0.rsplit_once(':').is_some_and(|(host, pid)| {
            !host.contains('/') && !pid.is_empty() && pid.bytes().all(|it| it.is_ascii_digit())
        })
    }

    /// Returns the owner as text.
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

/// A free text for people, shown beside the owner by inspection: at most 255 bytes without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// Creates a label.
    ///
    /// # Errors
    /// [`ConfigError`] on key `label` if it is longer than 255 bytes or contains a control character.
    pub fn new(label: impl AsRef<str>) -> Result<Self, ConfigError> {
        Ok(Self(printable("label", label.as_ref(), 0, OwnerId::MAX_BYTES)?.into()))
    }

    /// Returns the label that another program wrote to the store: control characters are replaced by U+FFFD, and it is cut at 255
    /// bytes.
    #[must_use]
    pub fn sanitized(label: &str) -> Self {
        Self(sanitized(label).into())
    }

    /// Returns the label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns true if the character can end a line, or change the display of the rest of it.
fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns `text` on one line, within the limit.
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
        return Err(ConfigError::new(key, format!("{} bytes: use {min} to {max} bytes", text.len())));
    }
    if text.chars().any(is_unprintable) {
        return Err(ConfigError::new(key, "contains a control character: remove it"));
    }
    Ok(text)
}

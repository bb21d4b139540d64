//! What the blob of a lock is called.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use polylock_core::LockName;

/// All but letters, digits and `-` are encoded, `_` too: it is what the encoding begins with, as a `%` would have to be encoded
/// once more in a URL. So no name ends with a dot or a slash, none is `..`, and a prefix stays one.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-');

/// The blob of a lock: at most three characters for each of 255 bytes, behind the prefix.
pub(crate) fn blob(prefix: &str, name: &LockName) -> String {
    under(prefix, name.as_str())
}

/// What the blobs of all locks begin with whose names begin with `name`.
pub(crate) fn under(prefix: &str, name: &str) -> String {
    format!("{prefix}/{}", encoded(name))
}

fn encoded(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string().replace('%', "_")
}

/// The blob beside a lock's by which processes that wait tell others. No lock has it: behind a `_` there are two digits.
pub(crate) fn mark(prefix: &str, name: &LockName) -> String {
    format!("{}_waits", blob(prefix, name))
}

/// What the blobs begin with that hold the notices of breaks. No lock has such a one either: `_b` is not followed by a digit.
pub(crate) fn notices(prefix: &str) -> String {
    format!("{prefix}/_broken_")
}

/// The blob with the notice of the last break of a lock.
pub(crate) fn notice(prefix: &str, name: &LockName) -> String {
    format!("{}{}", notices(prefix), encoded(name.as_str()))
}

/// The lock of a blob, if it is one's.
pub(crate) fn lock(prefix: &str, blob: &str) -> Option<LockName> {
    let encoded = blob.strip_prefix(prefix)?.strip_prefix('/')?;
    let text = encoded.replace('_', "%");
    let name = LockName::new(percent_decode_str(&text).decode_utf8().ok()?).ok()?;
    // Written in another way it would be another blob than the lock's.
    (self::blob(prefix, &name) == blob).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_are_nearly_alike_are_kept_apart() {
        let blob = |name: &str| blob("p", &LockName::new(name).unwrap());
        assert_eq!(blob("orders/42"), "p/orders_2F42");
        for (a, b) in [("a/", "a_2F"), ("a", "a "), ("a", "A"), ("a.", "a"), ("a\\b", "a/b"), (".", "..")] {
            assert_ne!(blob(a), blob(b), "{a:?} {b:?}");
        }
        for name in ["a", "broken", "_broken_"] {
            let name = LockName::new(name).unwrap();
            assert_eq!(lock("p", &mark("p", &name)), None);
            assert_eq!(lock("p", &notice("p", &name)), None);
        }
        for stranger in ["p", "p/", "q/a", "pa", "p/a_2f", "p/a/b", "p/a_2", "p/_FF", "p/\u{e9}"] {
            assert_eq!(lock("p", stranger), None, "{stranger:?}");
        }
    }

    proptest! {
        #[test]
        fn every_name_leads_back(name in "\\PC{1,60}") {
            let name = LockName::new(name).unwrap();
            let blob = blob("a/b", &name);
            prop_assert!(blob.len() <= 4 + 3 * 255 && !blob.ends_with(['.', '/']));
            prop_assert_eq!(lock("a/b", &blob), Some(name));
        }
    }
}

//! The names of blobs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use polylock_core::LockName;

/// All characters but letters, digits and `-` are encoded, including `_`: the encoding begins with it, because a `%` would have to be
/// encoded once more in a URL. So no name ends with a dot or a slash, none is `..`, and a prefix of a name stays a prefix.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-');

/// Returns the blob of a lock: at most three characters for each of 255 bytes, after the prefix.
pub(crate) fn blob(prefix: &str, name: &LockName) -> String {
    under(prefix, name.as_str())
}

/// Returns the prefix of the blobs of all locks with names that begin with `name`.
pub(crate) fn under(prefix: &str, name: &str) -> String {
    format!("{prefix}/{}", encoded(name))
}

fn encoded(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string().replace('%', "_")
}

/// Returns the blob of the waiter marker, beside the lock's. No lock has such a blob: in an encoded name, two digits follow a `_`.
pub(crate) fn marker(prefix: &str, name: &LockName) -> String {
    format!("{}_waits", blob(prefix, name))
}

/// Returns the prefix of the blobs with break notices. No lock has such a blob either: no digit follows the `_`.
pub(crate) fn notices(prefix: &str) -> String {
    format!("{prefix}/_broken_")
}

/// Returns the blob with the notice of the last break of a lock.
pub(crate) fn notice(prefix: &str, name: &LockName) -> String {
    format!("{}{}", notices(prefix), encoded(name.as_str()))
}

/// Returns the lock of a blob; `None` if it does not belong to a lock.
pub(crate) fn lock(prefix: &str, blob: &str) -> Option<LockName> {
    let encoded = blob.strip_prefix(prefix)?.strip_prefix('/')?;
    let text = encoded.replace('_', "%");
    let name = LockName::from_store(percent_decode_str(&text).decode_utf8().ok()?).ok()?;
    // A blob with another encoding of the name is not the lock's.
    (self::blob(prefix, &name) == blob).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn similar_names_have_different_blobs() {
        let blob = |name: &str| blob("p", &LockName::new(name).unwrap());
        assert_eq!(blob("orders/42"), "p/orders_2F42");
        for (a, b) in [("a/", "a_2F"), ("a", "a "), ("a", "A"), ("a.", "a"), ("a\\b", "a/b"), (".", "..")] {
            assert_ne!(blob(a), blob(b), "{a:?} {b:?}");
        }
        for name in ["a", "broken", "_broken_"] {
            let name = LockName::new(name).unwrap();
            assert_eq!(lock("p", &marker("p", &name)), None);
            assert_eq!(lock("p", &notice("p", &name)), None);
        }
        for other in ["p", "p/", "q/a", "pa", "p/a_2f", "p/a/b", "p/a_2", "p/_FF", "p/\u{e9}"] {
            assert_eq!(lock("p", other), None, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn every_blob_maps_back_to_its_name(name in "\\PC{1,60}") {
            let name = LockName::new(name).unwrap();
            let blob = blob("a/b", &name);
            prop_assert!(blob.len() <= 4 + 3 * 255 && !blob.ends_with(['.', '/']));
            prop_assert_eq!(lock("a/b", &blob), Some(name));
        }
    }
}

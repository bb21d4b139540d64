//! The paths of SQLite files in URLs.

use std::path::{Path, PathBuf};

use polylock::StoreUrl;

/// Returns the URL without secrets, with the absolute path of a relative file.
pub(super) fn displayed(url: &StoreUrl) -> String {
    match (url.stores(), absolute_path(url)) {
        ([old, new], _) => format!("{}:{};{}", url.scheme(), displayed(old), displayed(new)),
        (_, Some(path)) => format!("sqlite://{}", path.display()),
        (_, None) => url.to_string(),
    }
}

/// Returns true if the URL, or one of its two stores, is that of a file with a relative path.
pub(super) fn has_relative_path(url: &StoreUrl) -> bool {
    url.stores().iter().any(has_relative_path)
        || url.scheme() == "sqlite" && url.file().is_ok_and(|file| Path::new(&file).is_relative())
}

/// Returns the absolute path of a SQLite file with a relative path in the URL; `None` for a path that looks like a user and a password.
pub(super) fn absolute_path(url: &StoreUrl) -> Option<PathBuf> {
    let is_file = has_relative_path(url) && !url.rest().contains('@');
    if is_file { std::path::absolute(url.file().ok()?).ok() } else { None }
}

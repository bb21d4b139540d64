//! The programs of the PATH.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::Path,
};

/// Returns the names of the programs that begin with `start`, each once.
pub(super) fn named(start: &OsStr) -> impl Iterator<Item = String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let names = env::split_paths(&path).flat_map(|directory| programs(&directory, start));
    names.collect::<BTreeSet<_>>().into_iter()
}

/// Returns the names of those in one directory.
fn programs(directory: &Path, start: &OsStr) -> Vec<String> {
    let is_program = |entry: &fs::DirEntry| {
        fs::metadata(entry.path()).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let matching = entries.filter(|entry| entry.file_name().as_bytes().starts_with(start.as_bytes()));
    matching.filter(is_program).filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

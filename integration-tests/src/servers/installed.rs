//! Installed programs, and cached data directories.

use std::{
    env, io,
    path::{Path, PathBuf},
};

use polylock_testkit::Missing;

use super::keeper::Keeper;

/// Returns the program `name` from `PATH` or else from one of `folders`, the last one first. Links are resolved: related programs
/// are in the same directory.
pub(super) fn program(
    name: &str,
    folders: impl IntoIterator<Item = PathBuf, IntoIter: DoubleEndedIterator>,
    advice: &str,
) -> Result<PathBuf, Missing> {
    find(name, folders, advice, Path::canonicalize)
}

/// Like [`program`], without resolving links: some programs depend on their name. `redis-server` often is a link to `redis-check-rdb`.
pub(super) fn by_name(
    name: &str,
    folders: impl IntoIterator<Item = PathBuf, IntoIter: DoubleEndedIterator>,
    advice: &str,
) -> Result<PathBuf, Missing> {
    find(name, folders, advice, |program| std::path::absolute(program))
}

fn find(
    name: &str,
    folders: impl IntoIterator<Item = PathBuf, IntoIter: DoubleEndedIterator>,
    advice: &str,
    path_of: fn(&Path) -> io::Result<PathBuf>,
) -> Result<PathBuf, Missing> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).chain(folders.into_iter().rev()).map(|folder| folder.join(name));
    let found = found.filter(|program| program.is_file()).find_map(|program| path_of(&program).ok());
    found.ok_or_else(|| Missing(format!("the program `{name}` is missing: {advice}")))
}

/// Returns the directories in which `scripts/test.sh` installs servers without a system package, the nearest last: build directories may
/// be nested.
pub(super) fn built() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = targets().map(|target| target.join("test-servers/bin")).collect();
    folders.reverse();
    folders
}

/// Returns the file `path` of the package that `scripts/test.sh` has fetched as `name`. `PATH` is not searched, because the version matters.
pub(super) fn fetched(name: &str, path: &str, advice: &str) -> Result<PathBuf, Missing> {
    let found = targets().map(|target| target.join("test-servers").join(name).join(path));
    found
        .into_iter()
        .find(|file| file.is_file())
        .ok_or_else(|| Missing(format!("`{name}` is missing: {advice}")))
}

/// Returns the output of `program --version` as a file name.
///
/// # Panics
/// If it has none.
pub(super) fn version(program: &Path) -> String {
    let output = std::process::Command::new(program).arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("can't run {} --version: {error}", program.display()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    text.trim().rsplit('/').next().unwrap_or_default().chars().map(plain).collect()
}

/// Creates the directory `data` of the keeper with `create`, or as a copy of a cached one for the same `key` and user.
///
/// # Panics
/// If it can't be created, copied or cached.
pub(super) fn data(keeper: &mut Keeper, key: &str, create: impl FnOnce(&mut Keeper)) {
    let cache = cache();
    let template = cache.join(format!("{key}-{}", keeper.uid()));
    let template = template.display().to_string();
    if Path::new(&template).is_dir() {
        keeper.run(["cp", "-a", "--reflink=auto", &template, "data"]);
        return;
    }
    create(keeper);
    // Its name appears when it is complete, even if this process ends now: the shell completes the command. Another process may
    // create the same one first.
    let keep = r#"cp -a data "$1.$$" && mv -T "$1.$$" "$1" || { rm -rf "$1.$$"; [ -d "$1" ]; }"#;
    keeper.run(["mkdir", "-p", &cache.display().to_string()]);
    keeper.run(["sh", "-c", keep, "keep", &template]);
}

/// Returns the directory of the cache: in the build directory, or `POLYLOCK_TEST_CACHE`.
fn cache() -> PathBuf {
    if let Some(directory) = env::var_os("POLYLOCK_TEST_CACHE") {
        return directory.into();
    }
    targets().next().unwrap_or_else(env::temp_dir).join("test-servers")
}

/// Returns the build directories that contain this program, the nearest first.
fn targets() -> impl Iterator<Item = PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    let folders: Vec<PathBuf> = program.ancestors().map(Path::to_path_buf).collect();
    folders.into_iter().filter(|folder| folder.join("CACHEDIR.TAG").is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_that_is_not_installed_is_missing_with_advice() {
        let Missing(why) =
            program("polylockd", ["/usr/sbin".into()], "install polylockd").expect_err("not installed");
        assert_eq!(why, "the program `polylockd` is missing: install polylockd");
        assert!(program("sh", [], "").is_ok(), "from PATH");
    }

    #[test]
    fn links_are_resolved_unless_the_name_matters() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("real"), "").expect("a file");
        std::os::unix::fs::symlink("real", path("polylockd")).expect("a link");
        let found = [program, by_name].map(|find| find("polylockd", [folder.path().to_owned()], ""));
        assert_eq!(found.map(|found| found.expect("installed")), [path("real"), path("polylockd")]);
    }

    #[test]
    fn the_last_folder_has_precedence() {
        let folders = [1, 2].map(|_| tempfile::tempdir().expect("a directory"));
        for folder in &folders {
            fs::write(folder.path().join("polylockd"), "").expect("a file");
        }
        let found = program("polylockd", folders.each_ref().map(|folder| folder.path().to_owned()), "");
        assert_eq!(found.expect("two of them"), folders[1].path().join("polylockd"));
    }
}

//! One file, one name. SQLite keeps the log of a file beside the name by which it was opened. Programs that open one file by two names have
//! two logs: they see none of each other's locks, and damage the file. So does a program alone, if the log of one that was killed is beside
//! another name.
//!
//! Hence a file with hard links is refused, and so is one that is itself a mount: its log is in another file system, which ends with a
//! container, say, while the file stays. SQLite follows symbolic links.

use std::{path::Path, time::Duration};

use polylock_core::{Clock, ConfigError, Executor, Result, SystemClock};

/// The time for which a new file may have a second name: programs of earlier versions create it under another one.
const CREATION: Duration = Duration::from_millis(200);
const INTERVAL: Duration = Duration::from_millis(20);

const LINKED: &str = "the file has another name, a hard link, beside which SQLite would keep another log, so locks would be granted twice: \
                      delete that name (`find DIRECTORY -samefile FILE`)";
const MOUNTED: &str = "the file itself is a mount, so the files that SQLite keeps beside it are not shared with its other users, and \
                       locks would be granted twice: mount its directory instead";

/// Checks that the file at `path`, if there is one, has no other name, as far as this system tells.
///
/// # Errors
/// [`ConfigError`] if it has one.
pub(super) async fn check(path: &Path) -> Result<()> {
    let limit = SystemClock.now() + CREATION;
    loop {
        let owned = path.to_owned();
        // The file system may not respond. Any fault of the path is reported by SQLite.
        let problem = Executor::current().blocking(move || other_name(&owned)).await.unwrap_or(None);
        match problem {
            None => return Ok(()),
            Some(LINKED) if SystemClock.now() < limit => {
                SystemClock.sleep_until(SystemClock.now() + INTERVAL).await;
            }
            Some(problem) => {
                return Err(ConfigError::new("store", format!("{}: {problem}", path.display())).into());
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn other_name(_: &Path) -> Option<&'static str> {
    None
}

#[cfg(target_os = "linux")]
fn other_name(path: &Path) -> Option<&'static str> {
    use rustix::fs::{AtFlags, CWD, FileType, StatxAttributes, StatxFlags, statx};
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS).ok()?;
    if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile {
        return None;
    }
    // Known since Linux 5.8.
    let is_mount = (found.stx_attributes & found.stx_attributes_mask).contains(StatxAttributes::MOUNT_ROOT);
    is_mount.then_some(MOUNTED).or_else(|| (found.stx_nlink > 1).then_some(LINKED))
}

//! Where the file lies: whether SQLite's locks work there, and whether the path still leads to it.

use std::{
    io,
    path::{Path, PathBuf},
};

use polylock_core::{ConfigError, Result};

use super::error;

/// What tells a file from another that is put in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

impl Identity {
    /// The identity of what is at `path` now; `None` if there is nothing, or if this system has none.
    ///
    /// This looks at what the kernel keeps in memory of a local file that is open, so it may be asked on the thread
    /// that everything runs on. It does not open the file: closing it again would drop SQLite's locks.
    pub(super) fn of(path: &Path) -> Option<Self> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(path).ok().map(|found| Self(found.dev(), found.ino()))
        }
        #[cfg(not(unix))]
        {
            let _ = path;
            None
        }
    }
}

/// The absolute path, so that a later change of the working directory does not lead to another file, and so that
/// SQLite does not take a name for a URI; with its directories made, on a file system that keeps SQLite's locks.
pub(super) async fn made(path: PathBuf) -> Result<PathBuf> {
    let asked = path.clone();
    // A network file system that is away would block the thread that everything runs on.
    let made = tokio::task::spawn_blocking(move || make(&path)).await;
    let (path, file_system) = made
        .unwrap_or_else(|failure| Err(io::Error::other(failure)))
        .map_err(|failure| error::system(&asked, &failure))?;
    if let Some(file_system) = file_system {
        return Err(ConfigError::new(
            "store",
            format!(
                "the file lies on {file_system}, which does not keep SQLite's locks between machines: put it on a \
                 local disk, or choose a store with a server"
            ),
        )
        .into());
    }
    Ok(path)
}

fn make(path: &Path) -> io::Result<(PathBuf, Option<&'static str>)> {
    let path = std::path::absolute(path)?;
    let directory = path.parent().unwrap_or(&path);
    std::fs::create_dir_all(directory)?;
    let file_system = network(directory);
    Ok((path, file_system))
}

/// The name of the network file system that `directory` lies on, if it does and the system tells.
#[cfg(target_os = "linux")]
fn network(directory: &Path) -> Option<&'static str> {
    named(u64::try_from(rustix::fs::statfs(directory).ok()?.f_type).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn network(_: &Path) -> Option<&'static str> {
    None
}

/// The numbers are those of `statfs(2)`.
#[cfg(target_os = "linux")]
fn named(number: u64) -> Option<&'static str> {
    Some(match number & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x7375_7245 => "Coda",
        _ => return None,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers_and_local_ones_pass() {
        assert_eq!(named(0x6969), Some("NFS"));
        // As a signed 32-bit number that was widened.
        assert_eq!(named(0xffff_ffff_ff53_4d42), Some("SMB"));
        for local in [0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(named(local), None);
        }
        assert_eq!(network(&std::env::temp_dir()), None);
    }
}

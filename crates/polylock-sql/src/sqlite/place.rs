//! Where the file lies: whether SQLite's locks work there, and whether the path still leads to it.

use std::{
    io,
    path::{Path, PathBuf},
};

#[cfg(unix)]
use polylock_core::RequestId;
use polylock_core::{ConfigError, Result};

use super::error;
#[cfg(unix)]
use crate::engine::rows;

/// May lead anywhere: to another machine, or to the disk.
const FUSE: &str = "FUSE";

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
    if file_system == Some(FUSE) {
        tracing::warn!(
            file = ?path,
            "the file lies on a FUSE file system: if that leads to another machine, as sshfs does, SQLite's locks are not kept, and \
             locks are given twice; put it on a local disk"
        );
    } else if let Some(file_system) = file_system {
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
    if std::fs::metadata(&path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Err(io::Error::other("it is no regular file"));
    }
    let directory = path.parent().unwrap_or(&path);
    std::fs::create_dir_all(directory)?;
    let file_system = network(directory);
    Ok((path, file_system))
}

/// Makes the file at `path`, if there is none, for its owner alone: whoever may read it knows how to release the locks of others.
/// SQLite gives the files beside it the same rights.
///
/// It is made under another name and then linked: closing a file that others have begun to use would drop their locks.
#[cfg(unix)]
pub(super) async fn make_private(path: &Path) {
    let path = path.to_owned();
    let made = tokio::task::spawn_blocking(move || -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        if path.try_exists()? {
            return Ok(());
        }
        let mut draft = path.clone().into_os_string();
        draft.push(format!("-new-{}", rows::hex(&RequestId::random().to_bytes())));
        drop(std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?);
        let linked = std::fs::hard_link(&draft, &path);
        std::fs::remove_file(&draft)?;
        linked
    });
    // Another program was quicker, or the file system knows no links: SQLite makes it, with what the umask leaves. What is wrong
    // with the place, SQLite says, too.
    made.await.ok();
}

#[cfg(not(unix))]
pub(super) async fn make_private(_: &Path) {}

/// The name of the network file system that `directory` lies on, if it does and the system tells.
#[cfg(target_os = "linux")]
fn network(directory: &Path) -> Option<&'static str> {
    named(u64::try_from(rustix::fs::statfs(directory).ok()?.f_type).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn network(_: &Path) -> Option<&'static str> {
    None
}

/// The numbers are those of `statfs(2)`, of `linux/magic.h`, and of the file systems that coreutils' `stat` counts as remote.
#[cfg(target_os = "linux")]
fn named(number: u64) -> Option<&'static str> {
    Some(match number & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x564c => "NCP",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "OrangeFS",
        0xaad7_aaea => "PanFS",
        0x4750_4653 => "GPFS",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x7375_7245 => "Coda",
        0x0102_1997 => "9P",
        0x786f_4256 => "a shared folder of VirtualBox",
        0xbacb_acbc => "a shared folder of VMware",
        0x7c7c_6673 => "a shared folder of Parallels",
        0x6573_5546 => FUSE,
        _ => return None,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers_and_local_ones_pass() {
        for (number, name) in [
            (0x6969, "NFS"),
            (0x517b, "SMB"),
            (0xff53_4d42, "SMB"),
            (0xfe53_4d42, "SMB"),
            (0x564c, "NCP"),
            // Their names, in letters.
            (u64::from(u32::from_be_bytes(*b"SFAO")), "AFS"),
            (u64::from(u32::from_be_bytes(*b"kAFS")), "AFS"),
            (u64::from(u32::from_be_bytes(*b"GPFS")), "GPFS"),
            (u64::from(u32::from_be_bytes(*b"taco")), "OCFS2"),
            (u64::from(u32::from_be_bytes(*b"surE")), "Coda"),
            (u64::from(u32::from_be_bytes(*b"xoBV")), "a shared folder of VirtualBox"),
            (u64::from(u32::from_be_bytes(*b"esUF")), FUSE),
            (0x00c3_6400, "Ceph"),
            (0x0bd0_0bd0, "Lustre"),
            (0x1983_0326, "BeeGFS"),
            (0x2003_0528, "OrangeFS"),
            (0xaad7_aaea, "PanFS"),
            (0x0116_1970, "GFS2"),
            (0x0102_1997, "9P"),
            (0xbacb_acbc, "a shared folder of VMware"),
            (0x7c7c_6673, "a shared folder of Parallels"),
        ] {
            assert_eq!(named(number), Some(name));
        }
        // As a signed 32-bit number that was widened.
        assert_eq!(named(0xffff_ffff_ff53_4d42), Some("SMB"));
        for local in [0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(named(local), None);
        }
        assert_eq!(network(&std::env::temp_dir()), None);
    }
}

//! The path of the file: SQLite's locks must work there, and it must still lead to the same file.

#[cfg(unix)]
use std::ffi::OsStr;
use std::{
    io,
    path::{Path, PathBuf},
};

#[cfg(unix)]
use polylock_core::RequestId;
use polylock_core::{ConfigError, Executor, Result};

use super::error;
#[cfg(unix)]
use crate::engine::rows;

/// The longest path that SQLite opens, in bytes (`SQLITE_MAX_PATHNAME`), and the longest name with room for the suffix `-journal` or `-holders`.
const MAX_BYTES: [usize; 2] = [504, 247];

/// A FUSE file system may lead to another machine or to the local disk.
const FUSE: &str = "FUSE";

/// The identity of a file, which differs from that of a file that replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

impl Identity {
    /// Returns the identity of the file at `path`; `None` if there is none, or if this system has no such identity.
    ///
    /// For a local file that is open this reads what the kernel keeps in memory, so it may run on the I/O thread. It does not open the
    /// file: closing it again would drop SQLite's locks.
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

/// Creates the directories of `path` and returns it as an absolute path, so that a later change of the working directory does not lead to
/// another file, and so that SQLite does not parse a name as a URI.
///
/// # Errors
/// [`ConfigError`] if the path is too long, or the file system does not keep SQLite's locks; an error of the file system otherwise.
pub(super) async fn prepare_path(path: PathBuf) -> Result<PathBuf> {
    let requested = path.clone();
    let path = std::path::absolute(path).map_err(|failure| error::from_system(&requested, &failure))?;
    let bytes = [path.as_os_str().len(), path.file_name().unwrap_or_default().len()];
    if bytes.iter().zip(MAX_BYTES).any(|(bytes, max)| *bytes > max) {
        let ([path, name], [max_path, max_name]) = (bytes, MAX_BYTES);
        let problem = format!(
            "the path of the file has {path} bytes, {name} of them in its name: SQLite opens up to {max_path}, with up to {max_name} in the name"
        );
        return Err(ConfigError::new("store", problem).into());
    }
    // A network file system that does not respond would block the I/O thread.
    let absolute = path.clone();
    let result = Executor::current().blocking(move || create_directories(&absolute)).await;
    let file_system = result
        .unwrap_or_else(|failure| Err(io::Error::other(failure)))
        .map_err(|failure| error::from_system(&requested, &failure))?;
    if file_system == Some(FUSE) {
        tracing::warn!(
            file = ?path,
            "the file is on a FUSE file system: if that is on another machine, as with sshfs, SQLite's locks do not work, and \
             locks are granted twice; put it on a local disk"
        );
    } else if let Some(file_system) = file_system {
        return Err(ConfigError::new(
            "store",
            format!(
                "the file is on {file_system}, where SQLite's locks do not work between machines: put it on a \
                 local disk, or choose a store with a server"
            ),
        )
        .into());
    }
    Ok(path)
}

/// Returns the network file system of the path, if it is on one.
fn create_directories(path: &Path) -> io::Result<Option<&'static str>> {
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Err(io::Error::other("it is not a regular file"));
    }
    let directory = path.parent().unwrap_or(path);
    std::fs::create_dir_all(directory)?;
    Ok(network_file_system(directory))
}

/// Creates the file at `path`, if there is none, with rights for its owner alone: a user with read access can release the locks of others.
/// In a directory whose files belong to its group, the group has them, too. SQLite gives the files beside it the same rights.
///
/// The file is created under another name and then renamed: closing a file that others have begun to use would drop their locks.
#[cfg(unix)]
pub(super) async fn create(path: &Path) {
    let path = path.to_owned();
    let result = Executor::current().blocking(move || -> io::Result<()> {
        use std::{
            fs::{OpenOptions, Permissions},
            os::unix::fs::{OpenOptionsExt, PermissionsExt},
        };
        if path.try_exists()? {
            return Ok(());
        }
        let mut draft = path.clone().into_os_string();
        draft.push(format!("-new-{}", rows::hex(&RequestId::random().to_bytes())));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        // The umask does not take these from the group.
        let mode = if is_shared(path.parent().unwrap_or(&path)) { 0o660 } else { 0o600 };
        let created =
            file.set_permissions(Permissions::from_mode(mode)).and_then(|()| publish(&draft, &path));
        created.inspect_err(|_| drop(std::fs::remove_file(&draft)))
    });
    // Another program was faster, or the file system can't rename in this way: SQLite creates the file, with the rights that the umask leaves. Any
    // other fault of the path is reported by SQLite, too.
    result.await.ok();
}

/// Returns true if new files in `directory` belong to its group (setgid), whose members may create them, and nobody else may.
#[cfg(unix)]
fn is_shared(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    const SETGID: u32 = 0o2000;
    const WRITERS: u32 = 0o022;
    std::fs::metadata(directory).is_ok_and(|found| found.mode() & (SETGID | WRITERS) == SETGID | 0o020)
}

/// Renames `draft` to `path`, where no file may be.
#[cfg(target_os = "linux")]
fn publish(draft: &OsStr, path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE).map_err(Into::into)
}

#[cfg(all(unix, not(target_os = "linux")))]
fn publish(draft: &OsStr, path: &Path) -> io::Result<()> {
    std::fs::hard_link(draft, path)?;
    std::fs::remove_file(draft)
}

#[cfg(not(unix))]
pub(super) async fn create(_: &Path) {}

/// Returns the name of the network file system of `directory`, if it is on one that this system can recognise.
#[cfg(target_os = "linux")]
fn network_file_system(directory: &Path) -> Option<&'static str> {
    network_name(u64::try_from(rustix::fs::statfs(directory).ok()?.f_type).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_: &Path) -> Option<&'static str> {
    None
}

/// Returns the name of a network file system. The numbers are those of `statfs(2)`, of `linux/magic.h`, and of the file systems that
/// coreutils' `stat` counts as remote.
#[cfg(target_os = "linux")]
fn network_name(number: u64) -> Option<&'static str> {
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
    fn network_file_systems_are_recognised_and_local_ones_are_not() {
        for (number, name) in [
            (0x6969, "NFS"),
            (0x517b, "SMB"),
            (0xff53_4d42, "SMB"),
            (0xfe53_4d42, "SMB"),
            (0x564c, "NCP"),
            // Magic numbers that are letters.
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
            assert_eq!(network_name(number), Some(name));
        }
        // A signed 32-bit number, sign-extended.
        assert_eq!(network_name(0xffff_ffff_ff53_4d42), Some("SMB"));
        for local in [0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(network_name(local), None);
        }
        assert_eq!(network_file_system(&std::env::temp_dir()), None);
    }
}

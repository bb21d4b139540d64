//! The lock by which other processes find that this one has ended: the kernel releases it at that moment.
//!
//! Each store locks one byte, at a random position, of the file `-holders` beside the database. The rows of its holds and queue entries contain
//! that position. The lock is that of an open file description (`F_OFD_SETLK` of Linux), which the processes that this one starts inherit: a
//! holder counts as alive until they have ended, too, because their work may need the lock.
//!
//! A process counts as ended only if that is certain: the row was written under the same kernel (by its boot id), for the same file (by device
//! and inode, which the kernel does not use again while a process has the file open), and no process has the byte locked. In all other cases,
//! and on other systems, an entry lasts until its lease has expired.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use polylock_core::Executor;

/// The identity of a process, as the tables store it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessId(pub(super) Vec<u8>);

impl ProcessId {
    /// Returns the kernel and the file, and the position of the byte; `None` if these bytes are no identity.
    fn parts(&self) -> Option<(&[u8], i64)> {
        let (file, position) = self.0.split_last_chunk()?;
        Some((file, i64::from_be_bytes(*position)))
    }
}

/// The lock of one store of this process.
#[derive(Debug)]
pub(super) struct ProcessLock(Option<Locked>);

#[derive(Debug)]
struct Locked {
    id: ProcessId,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there are no such locks"))]
    file: File,
}

impl ProcessLock {
    /// Takes the lock beside the database at `database`, if that is possible.
    pub(super) async fn take(database: &Path) -> Self {
        let given = database.to_owned();
        let locked = Executor::current().blocking(move || {
            // Beside the file itself and not beside a link to it, as SQLite does with the files of its own.
            let database = std::fs::canonicalize(given)?;
            let mut path = database.clone().into_os_string();
            path.push("-holders");
            Locked::take(&database, &PathBuf::from(path))
        });
        match locked.await.unwrap_or_else(|failure| Err(io::Error::other(failure))) {
            Ok(locked) => Self(Some(locked)),
            Err(failure) => {
                const MEANING: &str =
                    "a lock of a process that ends is free when its lease has expired, not before";
                if failure.kind() == io::ErrorKind::PermissionDenied {
                    tracing::warn!(
                        ?database,
                        %failure,
                        "{MEANING}: this user has no right to read and write the file -holders beside the database; give it the owner, the \
                         group and the mode of the database"
                    );
                } else {
                    tracing::debug!(%failure, "{MEANING}");
                }
                Self(None)
            }
        }
    }

    /// Returns the lock of a simulated process, which ends without the end of the real one.
    #[cfg(all(feature = "simulation", target_os = "linux"))]
    pub(super) fn end_of_process(&self) -> io::Result<impl FnOnce() -> io::Result<()> + Send + use<>> {
        let Some(Locked { id, file }) = &self.0 else { return Err(io::ErrorKind::NotFound.into()) };
        let locked = Locked { id: id.clone(), file: file.try_clone()? };
        Ok(move || locked.release())
    }

    /// Returns the identity of this process, if others can find that it has ended.
    pub(super) fn id(&self) -> Option<&ProcessId> {
        self.0.as_ref().map(|locked| &locked.id)
    }

    /// Returns true if `process` has ended for certain.
    pub(super) fn has_ended(&self, process: &ProcessId) -> bool {
        let Some(own) = &self.0 else { return false };
        let (Some((own_file, own_position)), Some((file, position))) = (own.id.parts(), process.parts())
        else {
            return false;
        };
        // A file description does not find its own lock.
        file == own_file && position != own_position && own.is_unlocked(position)
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        fs::{File, OpenOptions, Permissions},
        io,
        os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
        path::Path,
    };

    use nix::{
        fcntl::{FcntlArg, fcntl},
        libc,
    };
    use polylock_core::RequestId;

    use super::{Locked, ProcessId};

    impl Locked {
        pub(super) fn take(database: &Path, path: &Path) -> io::Result<Self> {
            // A user of the database may lock bytes of the file, so it has the same owner, group and mode.
            let database = std::fs::metadata(database)?;
            let mode = database.mode() & 0o666;
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).mode(mode).open(path)?;
            let found = file.metadata()?;
            // These fail for a file of another user, who does the same. Only root may change the owner.
            if found.gid() != database.gid() {
                fchown(&file, None, Some(database.gid())).ok();
            }
            if found.uid() != database.uid() {
                fchown(&file, Some(database.uid()), None).ok();
            }
            if found.mode() & 0o666 != mode {
                file.set_permissions(Permissions::from_mode(mode)).ok();
            }
            let id = new_id(&file)?;
            let position = id.parts().map_or(0, |(_, position)| position);
            fcntl(&file, FcntlArg::F_OFD_SETLK(&byte(libc::F_WRLCK, position)))?;
            // The processes that this one starts inherit it.
            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
            Ok(Self { id, file })
        }

        /// Releases the lock, of which other processes have no more than a duplicate.
        #[cfg(feature = "simulation")]
        pub(super) fn release(&self) -> io::Result<()> {
            let position = self.id.parts().map_or(0, |(_, position)| position);
            fcntl(&self.file, FcntlArg::F_OFD_SETLK(&byte(libc::F_UNLCK, position)))
                .map(drop)
                .map_err(Into::into)
        }

        /// Returns true if no other file description has a lock of the byte at `position`.
        pub(super) fn is_unlocked(&self, position: i64) -> bool {
            let mut found = byte(libc::F_WRLCK, position);
            fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut found)).is_ok()
                && i32::from(found.l_type) == libc::F_UNLCK
        }
    }

    /// Returns an identity with a random position, which no other process has.
    fn new_id(file: &File) -> io::Result<ProcessId> {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let kernel =
            u128::from_str_radix(&kernel.trim_end().replace('-', ""), 16).map_err(io::Error::other)?;
        let found = file.metadata()?;
        // A position is not negative, and is not the last one.
        let position = (u128::from_be_bytes(RequestId::random().to_bytes()) >> 66) as u64;
        let mut id = kernel.to_be_bytes().to_vec();
        for part in [found.dev(), found.ino(), position] {
            id.extend(part.to_be_bytes());
        }
        Ok(ProcessId(id))
    }

    /// Returns a lock of this type of the byte at `position`.
    #[expect(clippy::cast_possible_truncation, reason = "the constants are small")]
    const fn byte(l_type: libc::c_int, position: i64) -> libc::flock {
        let (l_type, l_whence) = (l_type as libc::c_short, libc::SEEK_SET as libc::c_short);
        libc::flock { l_type, l_whence, l_start: position, l_len: 1, l_pid: 0 }
    }
}

#[cfg(not(target_os = "linux"))]
impl Locked {
    fn take(_: &Path, _: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn is_unlocked(&self, _: i64) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_has_ended_only_if_that_is_certain() {
        let directory = tempfile::TempDir::new().unwrap();
        let database = directory.path().join("x.db");
        std::fs::write(&database, "").unwrap();
        let (own, other) = (ProcessLock::take(&database).await, ProcessLock::take(&database).await);
        let [own_id, other_id] = [&own, &other].map(|lock| lock.id().unwrap().clone());
        assert!(!own.has_ended(&own_id), "this process");
        assert!(!own.has_ended(&other_id), "it has its lock");
        drop(other);
        assert!(own.has_ended(&other_id));
        // A process under another kernel, with another file of this name, and what is no identity.
        for byte in [0, 17, 30] {
            let mut elsewhere = other_id.clone();
            elsewhere.0[byte] ^= 1;
            assert!(!own.has_ended(&elsewhere), "{byte}");
        }
        assert!(!own.has_ended(&ProcessId(vec![7])) && !own.has_ended(&ProcessId(Vec::new())));
        let negative = [&own_id.0[..32], &(-1_i64).to_be_bytes()].concat();
        assert!(!own.has_ended(&ProcessId(negative)));
        std::fs::remove_file(directory.path().join("x.db-holders")).unwrap();
        let later = ProcessLock::take(&database).await;
        assert!(!later.has_ended(&own_id) && !later.has_ended(&other_id), "the file was replaced");
    }
}

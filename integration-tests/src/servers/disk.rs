//! The disk of a server: snapshots of its data, and a disk without room.

use std::{
    fs::{self, File},
    io::Write,
};

use polylock_testkit::Missing;

use super::private::PrivateServer;

/// Runs in the directory of the server, also if a disk of its own is mounted there. The log is no part of its data.
const SAVE: &str = r#"cd "$PWD" && rm -rf snapshot && mkdir snapshot &&
find . -mindepth 1 -maxdepth 1 ! -name snapshot ! -name log -exec cp -a -t snapshot {} +"#;

const RESTORE: &str = r#"cd "$PWD" && find . -mindepth 1 -maxdepth 1 ! -name snapshot ! -name log -exec rm -rf {} + &&
find snapshot -mindepth 1 -maxdepth 1 -exec cp -a -t . {} +"#;

/// Mounts an empty disk over the directory, which is still the present one, and copies the files. The log stays on the disk of the machine.
const LIMIT: &str = r#"mount -t tmpfs -o size=256m polylock "$PWD" &&
chown --reference=. "$PWD" && chmod --reference=. "$PWD" &&
find . -mindepth 1 -maxdepth 1 ! -name log -exec cp -a -t "$PWD" {} + &&
ln -s "/proc/$PPID/cwd/log" "$PWD/log""#;

/// The file that takes the room.
const FILL: &str = "fill";

impl PrivateServer {
    /// Copies its data as they are on its disk at this moment, like a snapshot of a volume.
    ///
    /// # Panics
    /// If they can't be copied.
    pub fn save(&self) {
        let mut keeper = self.keeper();
        keeper.freeze();
        keeper.run(["sh", "-c", &one_line(SAVE)]);
        keeper.thaw();
    }

    /// Kills it, replaces its data by those that were [saved](Self::save), and starts it.
    ///
    /// # Panics
    /// If there are none, or it does not start.
    pub fn restore(&self) {
        let mut keeper = self.keeper();
        keeper.kill();
        keeper.run(["sh", "-c", &one_line(RESTORE)]);
        drop(keeper);
        self.restart();
    }

    /// Kills it, replaces its data by a copy of those of `other`, a server of the same kind, and starts it.
    ///
    /// # Panics
    /// If they can't be copied, or it does not start.
    pub fn restore_from(&self, other: &Self) {
        other.save();
        let data = other.directory().join("snapshot/data");
        let mut keeper = self.keeper();
        keeper.kill();
        keeper.run(["sh", "-c", &format!(r#"cd "$PWD" && rm -rf data && cp -a {} ."#, data.display())]);
        drop(keeper);
        self.restart();
    }

    /// Restarts it with its data on a disk of its own, of 256 MiB in memory.
    ///
    /// # Errors
    /// [`Missing`] if this process may not mount one.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn limit_disk(&self) -> Result<(), Missing> {
        let mut keeper = self.keeper();
        keeper.kill();
        if !keeper.succeeds(["sh", "-c", &one_line(LIMIT)]) {
            return Err(Missing("only a privileged user can mount a disk: run as root".to_owned()));
        }
        drop(keeper);
        self.restart();
        Ok(())
    }

    /// Leaves no room on its disk.
    ///
    /// # Panics
    /// If it has none [of its own](Self::limit_disk).
    pub fn fill_disk(&self) {
        let path = self.directory().join(FILL);
        assert!(self.directory().join("log").is_symlink(), "{self:?} has the disk of the machine");
        let file = File::create(&path);
        let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        while file.write(&[0; 1 << 16]).is_ok() {}
    }

    /// Returns the room on its disk, and starts the server if it has ended.
    ///
    /// # Panics
    /// If it does not reply.
    pub fn clear_disk(&self) {
        fs::remove_file(self.directory().join(FILL)).ok();
        if self.wait_for_start().is_err() {
            self.restart();
        }
    }
}

/// Returns the command as one line, for the shell that keeps the server.
fn one_line(command: &str) -> String {
    command.replace('\n', " ")
}

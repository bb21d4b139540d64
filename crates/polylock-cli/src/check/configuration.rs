//! The configuration of the store: its origin, the programs that share it, and its weaknesses.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use polylock::{Scope, StoreUrl, core::url::Address};

use super::report::{Outcome, Row};
use crate::store::Origin;

const PART: &str = "settings";

/// The schemes of connections without encryption to servers that also accept encrypted ones, with the schemes of those.
const PLAIN: [(&str, &str); 8] = [
    ("redis", "rediss"),
    ("valkey", "valkeys"),
    ("redis+sentinel", "rediss+sentinel"),
    ("valkey+sentinel", "valkeys+sentinel"),
    ("redis-cluster", "rediss-cluster"),
    ("valkey-cluster", "valkeys-cluster"),
    ("zookeeper", "zookeeper+tls"),
    ("zk", "zk+tls"),
];

/// The configuration of the store.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) origin: Origin,
    pub(super) url: StoreUrl,
    /// The store without secrets.
    pub(super) display_name: String,
}

impl Configuration {
    /// Returns the store, its origin, its sharers, and a warning for each weakness.
    pub(super) fn rows(&self, scope: Scope) -> Vec<Row> {
        let mut rows = vec![
            Row::ok(PART, "store", &self.display_name),
            Row::ok(PART, "chosen by", self.origin.to_string()),
            self.sharers(scope),
        ];
        let weaknesses = [self.password(), self.encryption()].into_iter().flatten();
        rows.extend(weaknesses.map(|weakness| Row::new(PART, "configuration", Outcome::Warning, weakness)));
        rows
    }

    fn sharers(&self, scope: Scope) -> Row {
        let row = |value: String| Row::ok(PART, "shared by", value);
        match (scope, self.url.file()) {
            (Scope::Process, _) => row("the tasks of one process".to_owned()),
            (Scope::Host, Ok(file)) => {
                let row = row(users(Path::new(&file)));
                let advice = "each user has a default store of their own: name one store for all with $POLYLOCK_STORE or the config file";
                let is_default = self.origin == Origin::Default;
                Row { advice: is_default.then(|| advice.to_owned()), ..row }
            }
            (Scope::Host, Err(_)) => row("the processes of one machine".to_owned()),
            _ => row(match self.namespace() {
                Some(namespace) => format!("all programs with this store and polylock.namespace={namespace}"),
                None => "all programs with this store, in the default namespace".to_owned(),
            }),
        }
    }

    fn namespace(&self) -> Option<String> {
        self.url.keys().text("polylock.namespace")
    }

    fn password(&self) -> Option<String> {
        if self.has_password() { self.origin.readable_by_others() } else { None }
    }

    fn has_password(&self) -> bool {
        Address::parse(&self.url).is_ok_and(|address| address.user.is_some_and(|user| user.contains(':')))
    }

    /// Returns the problem of a password or of locks on a network without encryption.
    fn encryption(&self) -> Option<String> {
        let (_, encrypted) = PLAIN.into_iter().find(|(plain, _)| *plain == self.url.scheme())?;
        let address = Address::parse(&self.url).ok()?;
        let is_local = |host: &str| matches!(host, "localhost" | "::1" | "[::1]") || host.starts_with("127.");
        let servers = address.servers().ok()?;
        let remote = servers.iter().find(|server| !is_local(server.name))?;
        Some(format!(
            "the connection to {} is not encrypted: others in the network can read and change it; use {encrypted}:",
            remote.name
        ))
    }
}

/// Returns the users with programs that may use the file.
fn users(file: &Path) -> String {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mode = |path: &Path| fs::metadata(path).map(|data| (data.permissions().mode(), data.uid()));
    let Ok((file_mode, uid)) = mode(&file) else { return "the processes of one machine".to_owned() };
    let directory = file.parent().and_then(|parent| mode(parent).ok()).map_or(0o777, |(mode, _)| mode);
    // The directory must be writable, too, for the files beside the database.
    let allows = |bits: u32| file_mode & bits != 0 && directory & bits != 0;
    match (allows(0o002), allows(0o020)) {
        (true, _) => "the processes of all users of this machine".to_owned(),
        (false, true) => format!("the processes of user {uid} and of the file's group on this machine"),
        (false, false) => {
            format!("the processes of user {uid} on this machine, and of no other user (except root)")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn rows(url: &str, origin: Origin, scope: Scope) -> Vec<String> {
        let url = StoreUrl::parse(url).unwrap();
        let display_name = url.to_string();
        let rows = Configuration { origin, url, display_name }.rows(scope);
        rows.iter().map(|row| format!("{} {}", row.outcome.word(), row.value)).collect()
    }

    #[test]
    fn a_password_on_the_command_line_or_in_a_readable_file_is_a_weakness() {
        let url = "rediss://u:secret@db.example.com/0?polylock.namespace=a";
        let found = rows(url, Origin::CommandLine, Scope::Network);
        assert_eq!(
            found[..2],
            ["ok rediss://***@db.example.com/0?polylock.namespace=a", "ok -S on the command line"]
        );
        assert_eq!(found[2], "ok all programs with this store and polylock.namespace=a");
        assert!(
            found[3].starts_with("warning other users can read a password on a command line"),
            "{found:?}"
        );
        assert_eq!(rows(url, Origin::Variable("X".to_owned()), Scope::Network).len(), 3);
        assert_eq!(rows("rediss://db.example.com", Origin::CommandLine, Scope::Network).len(), 3);
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, expected) in [(0o600, 3), (0o640, 4), (0o604, 4)] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                rows(url, Origin::File(file.path().into()), Scope::Network).len(),
                expected,
                "{mode:o}"
            );
        }
    }

    #[test]
    fn a_remote_connection_without_encryption_is_a_weakness() {
        for (url, expected) in [
            ("redis://db.example.com", 4),
            ("redis://127.0.0.1:6379", 3),
            ("redis-cluster://localhost,db2", 4),
            ("zookeeper://[::1]", 3),
            ("rediss://db.example.com", 3),
        ] {
            let found = rows(url, Origin::CommandLine, Scope::Network);
            assert_eq!(found.len(), expected, "{found:?}");
        }
    }

    #[test]
    fn the_permissions_of_a_file_determine_its_users() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("l.db");
        fs::write(&file, "").unwrap();
        for (directory_mode, mode, expected) in [
            (0o777, 0o666, "all users"),
            (0o700, 0o666, "no other user"),
            (0o770, 0o660, "the file's group"),
            (0o777, 0o644, "no other user"),
        ] {
            fs::set_permissions(directory.path(), Permissions::from_mode(directory_mode)).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let found = rows(&format!("sqlite://{}", file.display()), Origin::Default, Scope::Host);
            assert!(found[2].contains(expected), "{found:?}");
        }
    }
}

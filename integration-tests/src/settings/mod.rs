//! Servers with settings that break other programs. Under each of them the conformance suite passes, or the store is refused by the
//! name of the setting. The command `polylock check` runs the suite, as it does for an operator.

use std::process::{Command, Output};

use polylock_testkit::Missing;
use serde::Deserialize;
use tokio::task::block_in_place;

use crate::{
    cargo::polylock,
    servers::{PrivateServer, execute, mariadb, postgres, redis, zookeeper},
};

/// The key for the wait for a store that is refused for the moment.
const OUTAGE: &str = "?polylock.outage=3s";

/// A store, and the settings of its server.
#[derive(Debug)]
pub struct Lane {
    /// The name of the store.
    pub store: &'static str,
    start: fn(&[&str]) -> Result<PrivateServer, Missing>,
    file: &'static str,
}

/// The stores with a server that has settings.
pub const LANES: [Lane; 4] = [
    Lane { store: "postgres", start: postgres::start, file: include_str!("postgres.toml") },
    Lane { store: "mariadb", start: mariadb::start, file: include_str!("mariadb.toml") },
    Lane { store: "redis", start: redis::start, file: include_str!("redis.toml") },
    Lane { store: "zookeeper", start: zookeeper::start, file: include_str!("zookeeper.toml") },
];

/// Settings that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The settings with which the server is started, in its format.
    #[serde(default)]
    pub set: Vec<String>,
    /// The statements of an administrator, after the store was opened for the first time.
    #[serde(default)]
    pub sql: Vec<String>,
    /// A part of the message by which the store is refused; it is usable if there is none.
    pub refused: Option<String>,
    /// The exit code of a refusal, 78 if it is not set.
    pub code: Option<i32>,
}

#[derive(Deserialize)]
struct File {
    setting: Vec<Setting>,
}

impl Lane {
    /// Returns the lane of this store.
    #[must_use]
    pub fn of(store: &str) -> Option<&'static Self> {
        LANES.iter().find(|lane| lane.store == store)
    }

    /// Returns all settings.
    ///
    /// # Panics
    /// If the file is not valid.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let file: File = toml::from_str(self.file).unwrap_or_else(|error| panic!("{}: {error}", self.store));
        file.setting
    }

    /// Starts a server with this setting, and checks the store there.
    ///
    /// # Errors
    /// What is different from the expectation.
    ///
    /// # Panics
    /// If the server does not start, or refuses a statement.
    pub async fn check(&self, setting: &Setting) -> Result<(), String> {
        let set: Vec<&str> = setting.set.iter().map(String::as_str).collect();
        let server = block_in_place(|| (self.start)(&set)).unwrap_or_else(|missing| panic!("{}", missing.0));
        let mut url = server.url().to_owned();
        if self.store == "postgres" {
            // A superuser sees all rows.
            let user = "CREATE ROLE app LOGIN; GRANT ALL ON SCHEMA public TO app";
            run_all(server.url(), &[user.to_owned()]).await;
            url = url.replace("postgres@", "app@");
        }
        let changed = !setting.sql.is_empty();
        if changed {
            let opened = call(&url, &["list"]);
            if !opened.status.success() {
                return Err(format!("it can't be opened before: {}", text(&opened)));
            }
            run_all(server.url(), &setting.sql).await;
        }
        // What others have made of the tables is noticed wherever they are used; a check has tables of its own.
        let state =
            if changed { call(&url, &["list"]) } else { call(&url, &["check", "--only", "settings"]) };
        if let Some(words) = &setting.refused {
            // A server may refuse only writes.
            let tried = if state.status.success() { call(&url, &["run", "-n", "n", "true"]) } else { state };
            let (code, message) = (tried.status.code(), text(&tried));
            let expected = Some(setting.code.unwrap_or(78));
            let as_expected = code == expected && message.contains(words.as_str());
            return if as_expected {
                Ok(())
            } else {
                Err(format!("{code:?} instead of {expected:?}: {message}"))
            };
        }
        if !state.status.success() {
            return Err(text(&state));
        }
        let checked = call(&url, &["check", "--only", "conformance"]);
        if checked.status.success() { Ok(()) } else { Err(text(&checked)) }
    }
}

/// Calls the command.
fn call(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(polylock());
    command.args(["-S", &format!("{url}{OUTAGE}")]).args(arguments).env_clear();
    block_in_place(|| command.output()).unwrap_or_else(|error| panic!("can't run polylock: {error}"))
}

fn text(output: &Output) -> String {
    let [out, messages] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{messages}")
}

/// Runs statements of an administrator.
async fn run_all(url: &str, statements: &[String]) {
    for statement in statements {
        execute(url, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

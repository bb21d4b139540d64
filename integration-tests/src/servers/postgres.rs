//! PostgreSQL. The durability is the default of the server; the harness does not change it.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use polylock_testkit::Missing;
use sqlx::{ConnectOptions, Connection, Executor, Row, postgres::PgConnectOptions};

use super::{
    installed,
    keeper::Keeper,
    private::{self, PrivateServer, ServerKind},
    tls,
};

/// Starts one with `settings` of its `postgresql.conf`, such as `default_transaction_isolation=serializable`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Postgres { settings: owned(settings), tls: false })
}

/// Starts one with TLS: `server.crt` in its directory is valid for `localhost` and 127.0.0.1, and signed by `ca.crt`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_tls(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Postgres { settings: owned(settings), tls: true })
}

fn owned(settings: &[&str]) -> Vec<String> {
    settings.iter().map(|&setting| setting.to_owned()).collect()
}

#[derive(Debug, Default)]
pub(super) struct Postgres {
    settings: Vec<String>,
    tls: bool,
}

#[async_trait]
impl ServerKind for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn users(&self) -> &'static [&'static str] {
        &["postgres", "nobody"]
    }

    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let advice = "install postgresql, or name a server in POLYLOCK_TEST_POSTGRES_URL";
        let postgres = installed::program("postgres", folders(), advice)?;
        let initdb = postgres.with_file_name("initdb").display().to_string();
        installed::data(keeper, &installed::version(&postgres), |keeper| {
            // Only the creation omits fsync: the directory is used for one run.
            let cluster =
                ["-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"];
            keeper.run_as_user([initdb.as_str()].iter().chain(&cluster));
        });
        let free = free_memory_command(keeper);
        keeper.finally(&free);

        let mut command = vec![postgres.display().to_string(), "-D".to_owned(), keeper.file("data")];
        let mut set = |setting: &str| command.extend(["-c".to_owned(), setting.to_owned()]);
        set(&format!("port={port}"));
        set("listen_addresses=127.0.0.1");
        set("unix_socket_directories=");
        set("max_connections=800");
        set("shared_buffers=32MB");
        // Files in its directory, because files in /dev/shm would outlive it.
        set("dynamic_shared_memory_type=mmap");
        if self.tls {
            tls::certify(keeper)?;
            set("ssl=on");
            set(&format!("ssl_cert_file={}", keeper.file("server.crt")));
            set(&format!("ssl_key_file={}", keeper.file("server.key")));
        }
        self.settings.iter().for_each(|setting| set(setting));
        Ok(command)
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }

    async fn data_directory(&self, url: &str, _: &Path) -> Result<String, String> {
        data_directory(url).await.map_err(|error| error.to_string())
    }
}

/// Returns the data directory of the PostgreSQL server behind `url`.
pub(super) async fn data_directory(url: &str) -> sqlx::Result<String> {
    let mut connection = url.parse::<PgConnectOptions>()?.connect().await?;
    // Unprepared: it may go through a pooler.
    let row = connection.fetch_one(sqlx::raw_sql("SHOW data_directory")).await?;
    connection.close().await?;
    row.try_get(0)
}

/// Frees the memory of a server that was killed, and will not use its data directory again.
pub(super) fn free_memory(keeper: &mut Keeper) {
    let free = free_memory_command(keeper);
    keeper.run_as_user(&free);
}

/// System V memory outlives a killed server, and there are few such segments.
fn free_memory_command(keeper: &Keeper) -> [String; 3] {
    let file = keeper.file("data/postmaster.pid");
    let segment = format!("sed -n '7s/.* //p' {file} 2>/dev/null | xargs -r ipcrm -m");
    ["sh".to_owned(), "-c".to_owned(), segment]
}

/// Returns the directories of Debian and Red Hat, older versions first.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<(u32, PathBuf)> = ["/usr/lib/postgresql", "/usr"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.trim_start_matches("pgsql-").parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    folders.sort();
    folders.into_iter().map(|(_, folder)| folder).collect()
}

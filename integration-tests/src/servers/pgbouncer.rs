//! PgBouncer in transaction mode: the settings and locks of a session may belong to another client in the next transaction.

use std::path::Path;

use async_trait::async_trait;
use polylock_testkit::Missing;

use super::{
    installed,
    keeper::Keeper,
    postgres,
    private::{self, PrivateServer, ServerKind},
};

/// Starts one in front of `server`, with `settings` of its `pgbouncer.ini`, such as `default_pool_size=1`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start(server: &PrivateServer, settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(PgBouncer {
        port: server.port(),
        data: server.directory().join("data").display().to_string(),
        settings: settings.join("\n"),
    })
}

/// A pooler, and its server.
#[derive(Debug)]
pub struct Pooled {
    /// The pooler.
    pub pooler: PrivateServer,
    /// The server.
    pub server: PrivateServer,
}

impl Pooled {
    pub(super) fn start() -> Result<Self, Missing> {
        let server = postgres::start(&[])?;
        Ok(Self { pooler: start(&server, &[])?, server })
    }
}

#[derive(Debug)]
struct PgBouncer {
    port: u16,
    /// The data directory of the server.
    data: String,
    settings: String,
}

#[async_trait]
impl ServerKind for PgBouncer {
    fn name(&self) -> &'static str {
        "pgbouncer"
    }

    fn users(&self) -> &'static [&'static str] {
        &["postgres", "nobody"]
    }

    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let folders = ["/usr/local/sbin", "/usr/sbin"];
        let program = installed::program("pgbouncer", folders.map(Into::into), "install pgbouncer")?;
        let config = format!(
            "[databases]\n\
             * = host=127.0.0.1 port={} user=postgres\n\
             [pgbouncer]\n\
             listen_addr=127.0.0.1\n\
             listen_port={port}\n\
             unix_socket_dir=\n\
             auth_type=any\n\
             pool_mode=transaction\n\
             max_client_conn=1000\n\
             ignore_startup_parameters=extra_float_digits\n\
             {}\n",
            self.port, self.settings
        );
        Ok(vec![program.display().to_string(), keeper.write("pgbouncer.ini", &config)])
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }

    async fn data_directory(&self, url: &str, _: &Path) -> Result<String, String> {
        postgres::data_directory(url).await.map_err(|error| error.to_string())
    }

    fn is_own_directory(&self, directory: &str, _: &Path) -> bool {
        directory == self.data
    }
}

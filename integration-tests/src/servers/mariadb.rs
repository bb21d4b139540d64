//! MariaDB. The durability is the default of the server; the harness does not change it.

use std::{fmt::Write as _, path::Path};

use async_trait::async_trait;
use polylock_testkit::Missing;
use sqlx::{ConnectOptions, Connection, mysql::MySqlConnectOptions};

use super::{
    installed,
    keeper::Keeper,
    private::{self, PrivateServer, ServerKind},
    tls,
};

/// Starts one with `settings` of its `my.cnf`, such as `transaction_isolation=SERIALIZABLE`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(MariaDb { settings: settings.join("\n"), tls: false })
}

/// Starts one with TLS: `server.crt` in its directory is valid for `localhost` and 127.0.0.1, and signed by `ca.crt`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_tls(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(MariaDb { settings: settings.join("\n"), tls: true })
}

#[derive(Debug, Default)]
pub(super) struct MariaDb {
    settings: String,
    tls: bool,
}

/// Small enough to be copied quickly.
const REDO_LOG: &str = "innodb_log_file_size=16M";

#[async_trait]
impl ServerKind for MariaDb {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    fn users(&self) -> &'static [&'static str] {
        &["mysql", "nobody"]
    }

    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let advice = "install mariadb-server, or name a server in POLYLOCK_TEST_MYSQL_URL";
        let find = |program| {
            let folders = ["/usr/libexec", "/usr/local/sbin", "/usr/sbin"];
            installed::program(program, folders.map(Into::into), advice)
        };
        let (server, install) = (find("mariadbd")?, find("mariadb-install-db")?.display().to_string());
        installed::data(keeper, &installed::version(&server), |keeper| {
            let directory = format!("--datadir={}", keeper.file("data"));
            let (log, password) = (format!("--{REDO_LOG}"), "--auth-root-authentication-method=normal");
            keeper.run_as_user([&install, "--no-defaults", &directory, &log, password, "--skip-test-db"]);
        });

        let home = keeper.directory().display();
        let mut config = format!(
            "[mariadbd]\n\
             datadir={home}/data\n\
             socket={home}/socket\n\
             pid-file={home}/pid\n\
             init-file={home}/init.sql\n\
             port={port}\n\
             bind-address=127.0.0.1\n\
             skip-name-resolve\n\
             skip-log-bin\n\
             max_connections=800\n\
             innodb_buffer_pool_size=32M\n\
             {REDO_LOG}\n",
        );
        keeper.write("init.sql", "CREATE DATABASE IF NOT EXISTS polylock;\n");
        if self.tls {
            tls::certify(keeper)?;
            let home = keeper.directory().display();
            write!(config, "ssl_ca={home}/ca.crt\nssl_cert={home}/server.crt\nssl_key={home}/server.key\n")
                .ok();
        }
        config.push_str(&self.settings);
        config.push('\n');
        Ok(vec![server.display().to_string(), format!("--defaults-file={}", keeper.write("my.cnf", &config))])
    }

    fn url(&self, port: u16) -> String {
        format!("mysql://root@127.0.0.1:{port}/polylock")
    }

    async fn data_directory(&self, url: &str, _: &Path) -> Result<String, String> {
        let asked = async {
            let mut connection = url.parse::<MySqlConnectOptions>()?.connect().await?;
            let directory = sqlx::query_scalar("SELECT @@datadir").fetch_one(&mut connection).await?;
            connection.close().await?;
            Ok(directory)
        };
        asked.await.map_err(|error: sqlx::Error| error.to_string())
    }
}

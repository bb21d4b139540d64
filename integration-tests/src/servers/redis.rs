//! Redis, and the common part of Valkey. Without the settings [`DURABLE`] it loses its data when it ends.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use polylock_testkit::Missing;
use redis::{
    AsyncConnectionConfig, Client, InfoDict, RedisError, RedisResult, TlsCertificates,
    aio::MultiplexedConnection,
};

use super::{
    installed,
    keeper::Keeper,
    private::{self, PrivateServer, ServerKind},
    tls,
};
use crate::clock::TIMEOUT;

/// The settings with which it loses no write that it has acknowledged.
pub const DURABLE: &[&str] = &["appendonly yes", "appendfsync always"];

/// Starts one with `settings`: lines of its `redis.conf`, such as `maxmemory-policy allkeys-lru`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Redis::of(&REDIS, settings))
}

/// Starts one with `settings` that require a login: its URL has the `user` part `NAME:PASSWORD`, or
/// `:PASSWORD`. That user needs the rights for `PING` and `CONFIG GET`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_as(user: &str, settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Redis { user: format!("{user}@"), ..Redis::of(&REDIS, settings) })
}

/// Starts one that accepts only TLS: `server.crt` in its directory is valid for `localhost` and 127.0.0.1, and signed by
/// `ca.crt`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_tls(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Redis::of(&REDIS, settings).with(Tls::Own))
}

/// Returns a client of `server` for calls without the store; it trusts the authority of the server.
///
/// # Errors
/// If the server's certificates can't be read.
pub fn client(server: &PrivateServer) -> RedisResult<Client> {
    client_of(server.url(), &server.directory())
}

fn client_of(url: &str, home: &Path) -> RedisResult<Client> {
    if !url.starts_with("rediss:") {
        return Client::open(url);
    }
    let root_cert = Some(fs::read(home.join("ca.crt"))?);
    Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert })
}

/// A Sentinel that watches the server at `primary`, a port of 127.0.0.1, under the name `orders`.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_sentinel(primary: u16) -> Result<PrivateServer, Missing> {
    let watch = format!("sentinel monitor orders 127.0.0.1 {primary} 1");
    private::start(Redis::sentinel(&[&watch]))
}

/// A program that speaks the Redis protocol.
#[derive(Debug)]
pub(super) struct Product {
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    pub(super) advice: &'static str,
}

pub(super) const REDIS: Product = Product {
    name: "redis",
    program: "redis-server",
    advice: "install redis-server, or name a server in POLYLOCK_TEST_REDIS_URL",
};

#[derive(Debug)]
pub(super) struct Redis {
    product: &'static Product,
    settings: String,
    /// The part of its URL before the host.
    user: String,
    tls: Tls,
    sentinel: bool,
}

/// The encryption of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tls {
    No,
    /// With an authority of its own.
    Own,
    /// With the authority of the server in this directory.
    SignedBy(PathBuf),
}

impl Tls {
    /// Returns the setting of a further server, so that it and `first` trust each other.
    pub(super) fn beside(first: &PrivateServer) -> Self {
        if first.url().starts_with("rediss:") { Self::SignedBy(first.directory()) } else { Self::No }
    }
}

impl Redis {
    pub(super) fn of(product: &'static Product, settings: &[&str]) -> Self {
        Self { product, settings: settings.join("\n"), user: String::new(), tls: Tls::No, sentinel: false }
    }

    pub(super) fn with(self, tls: Tls) -> Self {
        Self { tls, ..self }
    }

    /// A Sentinel.
    pub(super) fn sentinel(settings: &[&str]) -> Self {
        Self { sentinel: true, ..Self::of(&REDIS, settings) }
    }
}

#[async_trait]
impl ServerKind for Redis {
    fn name(&self) -> &'static str {
        self.product.name
    }

    fn users(&self) -> &'static [&'static str] {
        &["redis", "valkey", "nobody"]
    }

    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let program = installed::by_name(self.product.program, installed::built(), self.product.advice)?;
        keeper.run_as_user(["mkdir", "data"]);

        let home = keeper.directory().display();
        // Its own name stays in the list of processes, so that one can see whose it is.
        let mut config = format!(
            "bind 127.0.0.1\n\
             dir {home}/data\n\
             set-proc-title no\n",
        );
        if !self.sentinel {
            config.push_str("save \"\"\nappendonly no\n");
        }
        if self.tls == Tls::No {
            writeln!(config, "port {port}").ok();
        } else {
            let signer = if let Tls::SignedBy(signer) = &self.tls { Some(&**signer) } else { None };
            tls::certify_as(keeper, signer)?;
            let home = keeper.directory().display();
            write!(
                config,
                "port 0\n\
                 tls-port {port}\n\
                 tls-ca-cert-file {home}/ca.crt\n\
                 tls-cert-file {home}/server.crt\n\
                 tls-key-file {home}/server.key\n\
                 tls-auth-clients no\n\
                 tls-replication yes\n"
            )
            .ok();
        }
        config.push_str(&self.settings);
        config.push('\n');
        let program = program.display().to_string();
        let file = keeper.write("redis.conf", &config);
        if self.sentinel {
            // It writes to its file what it finds out.
            keeper.run_as_user(["cp", &file, "data/sentinel.conf"]);
            let file = keeper.directory().join("data/sentinel.conf");
            return Ok(vec![program, file.display().to_string(), "--sentinel".to_owned()]);
        }
        Ok(vec![program, file])
    }

    fn url(&self, port: u16) -> String {
        let scheme = if self.tls == Tls::No { "redis" } else { "rediss" };
        format!("{scheme}://{}127.0.0.1:{port}", self.user)
    }

    async fn data_directory(&self, url: &str, home: &Path) -> Result<String, String> {
        let asked = async {
            let client = client_of(url, home)?;
            if self.sentinel { configuration(&client).await } else { data_directory(&client).await }
        };
        asked.await.map_err(|error| error.to_string())
    }
}

/// Opens a connection to the server at `url` for a test. The driver's own limits are too short for a busy machine.
///
/// # Errors
/// If the server can't be reached.
pub async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await
}

/// Ends the durability of a server until its next start, which reads the file as it is now.
///
/// # Panics
/// If the server refuses.
pub fn end_durability(server: &PrivateServer) {
    let set = || {
        let mut connection = Client::open(server.url())?.get_connection()?;
        redis::cmd("CONFIG").arg("SET").arg("appendonly").arg("no").exec(&mut connection)
    };
    set().unwrap_or_else(|error: RedisError| panic!("{server:?}: {error}"));
}

/// Returns the configuration file of a server.
async fn configuration(client: &Client) -> RedisResult<String> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    let info: InfoDict = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    Ok(info.get("config_file").unwrap_or_default())
}

async fn data_directory(client: &Client) -> RedisResult<String> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    // While it loads its data it replies to the query of the directory, but not to this command.
    redis::cmd("PING").exec_async(&mut connection).await?;
    let directory: (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("dir").query_async(&mut connection).await?;
    Ok(directory.1)
}

/// Starts a server of this product that loses no write.
pub(super) fn start_durable(product: &'static Product) -> Result<PrivateServer, private::Failure> {
    private::start_or_fail(Redis::of(product, DURABLE))
}

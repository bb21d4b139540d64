//! Redis, and the kind that Valkey is of, too. Unless [`DURABLE`] says otherwise it keeps nothing when it ends.

use std::{fmt::Write as _, fs, path::Path};

use async_trait::async_trait;
use polylock_testkit::Missing;
use redis::{Client, InfoDict, RedisResult, TlsCertificates};

use super::{Kind, Private, installed, keeper::Keeper, tls};

/// The settings with which it loses no write that it has acknowledged.
pub const DURABLE: &[&str] = &["appendonly yes", "appendfsync always"];

/// Starts one with `settings`: lines of its `redis.conf`, such as `maxmemory-policy allkeys-lru`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn start(settings: &[&str]) -> Result<Private, Missing> {
    super::start(Redis::of(&REDIS, settings))
}

/// The same for `settings` that forbid something to those who don't log in: its URL has the `user` part `NAME:PASSWORD`, or
/// `:PASSWORD`. That user must be one who may ask `PING` and `CONFIG GET`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn start_as(user: &str, settings: &[&str]) -> Result<Private, Missing> {
    super::start(Redis { user: format!("{user}@"), ..Redis::of(&REDIS, settings) })
}

/// The same with TLS, and nothing else: `server.crt` in its directory is valid for `localhost` and 127.0.0.1, and signed by
/// `ca.crt`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn start_tls(settings: &[&str]) -> Result<Private, Missing> {
    super::start(Redis { tls: true, ..Redis::of(&REDIS, settings) })
}

/// A Sentinel that watches the server at `primary`, a port of 127.0.0.1, under the name `orders`.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn start_sentinel(primary: u16) -> Result<Private, Missing> {
    let watch = format!("sentinel monitor orders 127.0.0.1 {primary} 1");
    super::start(Redis::sentinel(&[&watch]))
}

/// A program that is one.
#[derive(Debug)]
pub(super) struct Make {
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    pub(super) advice: &'static str,
}

pub(super) const REDIS: Make = Make {
    name: "redis",
    program: "redis-server",
    advice: "install redis-server, or name a server in POLYLOCK_TEST_REDIS_URL",
};

#[derive(Debug)]
pub(super) struct Redis {
    make: &'static Make,
    settings: String,
    /// What its URL has before the host.
    user: String,
    tls: bool,
    sentinel: bool,
}

impl Redis {
    pub(super) fn of(make: &'static Make, settings: &[&str]) -> Self {
        Self { make, settings: settings.join("\n"), user: String::new(), tls: false, sentinel: false }
    }

    /// A Sentinel.
    pub(super) fn sentinel(settings: &[&str]) -> Self {
        Self { sentinel: true, ..Self::of(&REDIS, settings) }
    }
}

#[async_trait]
impl Kind for Redis {
    fn name(&self) -> &'static str {
        self.make.name
    }

    fn users(&self) -> &'static [&'static str] {
        &["redis", "valkey", "nobody"]
    }

    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let program = installed::by_name(self.make.program, installed::built(), self.make.advice)?;
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
        if self.tls {
            tls::certify(keeper)?;
            let home = keeper.directory().display();
            write!(
                config,
                "port 0\n\
                 tls-port {port}\n\
                 tls-ca-cert-file {home}/ca.crt\n\
                 tls-cert-file {home}/server.crt\n\
                 tls-key-file {home}/server.key\n\
                 tls-auth-clients no\n"
            )
            .ok();
        } else {
            writeln!(config, "port {port}").ok();
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
        format!("{}://{}127.0.0.1:{port}", if self.tls { "rediss" } else { "redis" }, self.user)
    }

    async fn whereabouts(&self, url: &str, home: &Path) -> Result<String, String> {
        let authority = self.tls.then(|| fs::read(home.join("ca.crt")).unwrap_or_default());
        if self.sentinel {
            return configuration(url).await.map_err(|error| error.to_string());
        }
        whereabouts(url, authority).await.map_err(|error| error.to_string())
    }
}

/// The file that a server has read its settings from.
async fn configuration(url: &str) -> RedisResult<String> {
    let mut connection = Client::open(url)?.get_multiplexed_async_connection().await?;
    let info: InfoDict = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    Ok(info.get("config_file").unwrap_or_default())
}

async fn whereabouts(url: &str, authority: Option<Vec<u8>>) -> RedisResult<String> {
    let client = match authority {
        Some(_) => Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert: authority })?,
        None => Client::open(url)?,
    };
    let mut connection = client.get_multiplexed_async_connection().await?;
    // While it still reads its data it says where they are, but it does not answer this.
    redis::cmd("PING").exec_async(&mut connection).await?;
    let directory: (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("dir").query_async(&mut connection).await?;
    Ok(directory.1)
}

//! The Sentinels, and the primary that they name.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use polylock_core::{Clock, ConfigError, Fault, SystemClock};
use redis::{Client, ConnectionInfo, ProtocolVersion, RedisResult};

use super::Config;
use crate::{
    config::{Settings, address, moved_to},
    error::Cause,
    link::connection,
};

/// The Sentinels that watch one primary.
pub(crate) struct Sentinels {
    /// The name of the primary.
    name: String,
    watchers: Vec<(String, Client)>,
    settings: Settings,
}

/// The address of a primary, and how many Sentinels name it.
type Named = ((String, u16), usize);

impl Sentinels {
    /// # Errors
    /// If a certificate can't be read.
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let settings = config.settings.clone();
        let watcher = |server: &ConnectionInfo| {
            let server = server.clone().set_redis_settings(config.sentinel_user.clone());
            // Sentinels before Redis 7 know no HELLO.
            Ok((address(&server), settings.client(&server, ProtocolVersion::RESP2)?))
        };
        let watchers = settings.servers.iter().map(watcher).collect::<Result<_, ConfigError>>()?;
        Ok(Self { name: config.primary.clone(), watchers, settings })
    }

    /// The primary and the Sentinels, without secrets.
    pub(super) fn place(&self) -> String {
        let watchers: Vec<&str> = self.watchers.iter().map(|(place, _)| place.as_str()).collect();
        format!("{} by {}", self.name, watchers.join(","))
    }

    /// The servers that the Sentinels name as the primary now: the one that most of them name comes first. One that was isolated
    /// may still name the former primary.
    ///
    /// Returns as soon as a majority names the same server, and after a third of the time for a connection if any has named one.
    ///
    /// # Errors
    /// If none names one.
    ///
    /// # Cancel safety
    /// Yes.
    pub(crate) async fn primary(&self) -> Result<Vec<Client>, Cause> {
        let limit = self.settings.connect_timeout;
        let enough = SystemClock.now() + limit / 3;
        let end = SystemClock.now() + limit;
        let mut replies: FuturesUnordered<_> =
            self.watchers.iter().map(|(_, client)| name_of(client, &self.name)).collect();
        let (mut named, mut failed, mut unknown): (Vec<Named>, Option<Cause>, usize) = (Vec::new(), None, 0);
        loop {
            let until = if named.is_empty() { end } else { enough };
            match SystemClock.before(until, replies.next()).await {
                Some(Some(Ok(Some(server)))) => {
                    match named.iter_mut().find(|(other, _)| *other == server) {
                        Some((_, count)) => *count += 1,
                        None => named.push((server, 1)),
                    }
                    if named.iter().any(|(_, count)| *count > self.watchers.len() / 2) {
                        break;
                    }
                }
                Some(Some(Ok(None))) => unknown += 1,
                Some(Some(Err(error))) => {
                    failed.get_or_insert(Cause::Driver(error));
                }
                Some(None) | None => break,
            }
        }
        named.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let clients = named.iter().map(|((host, port), _)| {
            let server = moved_to(&self.settings.servers[0], host, *port);
            let client = self.settings.client(&server, ProtocolVersion::RESP3);
            client.map_err(|error| Cause::Unusable(Fault::Permanent, error.to_string()))
        });
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        if clients.is_empty() { Err(self.nobody(unknown, failed, limit)) } else { Ok(clients) }
    }

    /// Why no Sentinel has named a primary, of which `unknown` know none of that name.
    fn nobody(&self, unknown: usize, failed: Option<Cause>, limit: Duration) -> Cause {
        if unknown == 0 {
            return failed.map_or(Cause::TimedOut(limit), Cause::of_sentinel);
        }
        // One that can't be reached may know it.
        let fault = if unknown == self.watchers.len() { Fault::Permanent } else { Fault::Temporary };
        let why = format!(
            "no Sentinel that replies watches a primary called {:?}: the path of the URL must be the name in `sentinel monitor \
             NAME …`",
            self.name
        );
        Cause::Unusable(fault, why)
    }
}

/// The address of the primary that one Sentinel knows by `name`.
async fn name_of(client: &Client, name: &str) -> RedisResult<Option<(String, u16)>> {
    let mut connection = client.get_multiplexed_async_connection_with_config(&connection(None)).await?;
    redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut connection).await
}

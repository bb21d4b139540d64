//! The Sentinels, and the primary that they name.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use polylock_core::{Clock, ConfigError, Fault, SystemClock};
use redis::{Client, ConnectionInfo, ProtocolVersion, RedisResult};

use super::config::Config;
use crate::{
    config::{Settings, address, connection_config, with_host},
    error::Cause,
};

/// The Sentinels that watch one primary.
pub(crate) struct Sentinels {
    /// The name of the primary.
    name: String,
    sentinels: Vec<(String, Client)>,
    settings: Settings,
}

/// The address of a primary, and the number of Sentinels that name it.
type NamedPrimary = ((String, u16), usize);

impl Sentinels {
    /// # Errors
    /// If a certificate can't be read.
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let settings = config.settings.clone();
        let sentinel = |server: &ConnectionInfo| {
            let server = server.clone().set_redis_settings(config.sentinel_user.clone());
            // Sentinels before Redis 7 do not have HELLO.
            Ok((address(&server), settings.client(&server, ProtocolVersion::RESP2)?))
        };
        let sentinels = settings.servers.iter().map(sentinel).collect::<Result<_, ConfigError>>()?;
        Ok(Self { name: config.primary.clone(), sentinels, settings })
    }

    /// Returns the name of the primary and the addresses of the Sentinels, without secrets.
    pub(super) fn address(&self) -> String {
        let sentinels: Vec<&str> = self.sentinels.iter().map(|(address, _)| address.as_str()).collect();
        format!("{} by {}", self.name, sentinels.join(","))
    }

    /// Returns the servers that the Sentinels name as the primary at present, the one that most of them name first. A Sentinel that was
    /// isolated may still name the former primary.
    ///
    /// Returns as soon as a majority names the same server, or after a third of `connect_timeout` if any Sentinel has named one.
    ///
    /// # Errors
    /// If no Sentinel names a primary.
    ///
    /// # Cancel safety
    /// Yes.
    pub(crate) async fn primary(&self) -> Result<Vec<Client>, Cause> {
        let limit = self.settings.connect_timeout;
        let any_after = SystemClock.now() + limit / 3;
        let end = SystemClock.now() + limit;
        let mut replies: FuturesUnordered<_> =
            self.sentinels.iter().map(|(_, client)| primary_address(client, &self.name)).collect();
        let (mut named, mut failed, mut unknown): (Vec<NamedPrimary>, Option<Cause>, usize) =
            (Vec::new(), None, 0);
        loop {
            let until = if named.is_empty() { end } else { any_after };
            match SystemClock.before(until, replies.next()).await {
                Some(Some(Ok(Some(server)))) => {
                    match named.iter_mut().find(|(other, _)| *other == server) {
                        Some((_, count)) => *count += 1,
                        None => named.push((server, 1)),
                    }
                    if named.iter().any(|(_, count)| *count > self.sentinels.len() / 2) {
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
            let server = with_host(&self.settings.servers[0], host, *port);
            let client = self.settings.client(&server, ProtocolVersion::RESP3);
            client.map_err(|error| Cause::Unusable(Fault::Permanent, error.to_string()))
        });
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        if clients.is_empty() { Err(self.no_primary(unknown, failed, limit)) } else { Ok(clients) }
    }

    /// Returns the cause if no Sentinel has named a primary. `unknown` is the number of Sentinels that watch no primary of that name.
    fn no_primary(&self, unknown: usize, failed: Option<Cause>, limit: Duration) -> Cause {
        if unknown == 0 {
            return failed.map_or(Cause::TimedOut(limit), Cause::of_sentinel);
        }
        // A Sentinel that can't be reached may watch it.
        let fault = if unknown == self.sentinels.len() { Fault::Permanent } else { Fault::Temporary };
        let advice = format!(
            "no Sentinel that replies watches a primary called {:?}: the path of the URL must be the name in `sentinel monitor \
             NAME …`",
            self.name
        );
        Cause::Unusable(fault, advice)
    }
}

/// Returns the address of the primary `name` that one Sentinel returns; `None` if it watches no such primary.
async fn primary_address(client: &Client, name: &str) -> RedisResult<Option<(String, u16)>> {
    let mut connection =
        client.get_multiplexed_async_connection_with_config(&connection_config(None)).await?;
    redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut connection).await
}

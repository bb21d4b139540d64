//! A Redis primary and its replica. Replication is asynchronous, so the primary ends its role in an orderly way.

use polylock_testkit::Missing;
use redis::{InfoDict, RedisResult};

use super::roles::{Roles, done};
use crate::{
    clock,
    servers::{private::PrivateServer, redis as server},
};

#[derive(Debug)]
pub(super) struct Redis;

pub(super) fn start(settings: &[&str]) -> Result<[PrivateServer; 2], Missing> {
    let settings = [&["repl-diskless-sync-delay 0"], settings].concat();
    let primary = server::start(&settings)?;
    let follow = format!("replicaof 127.0.0.1 {}", primary.port());
    let standby = server::start(&[&[follow.as_str()], &settings[..]].concat())?;
    Redis.follow(&standby, &primary);
    Ok([primary, standby])
}

impl Roles for Redis {
    fn resign<'p>(
        &self,
        primary: &'p PrivateServer,
        standby: &'p PrivateServer,
        _: bool,
    ) -> &'p PrivateServer {
        done("can't stop the primary", async {
            // It delays all writes until the standby has everything, and then both change their roles. The standby accepts writes at once,
            // but nobody is led to it before the end.
            ask::<()>(primary, &["FAILOVER", "TO", "127.0.0.1", &standby.port().to_string()]).await?;
            clock::until("both have changed their roles", async || {
                has(primary, "role", "slave").await && has(standby, "role", "master").await
            })
            .await;
            RedisResult::Ok(())
        });
        primary
    }

    fn promote(&self, _: &PrivateServer) {}

    fn follow(&self, former: &PrivateServer, _: &PrivateServer) {
        done("can't make a standby", async {
            clock::until("the standby has everything", async || {
                has(former, "master_link_status", "up").await
            })
            .await;
            RedisResult::Ok(())
        });
    }
}

/// Returns true if the server says this of its replication.
async fn has(server: &PrivateServer, key: &str, value: &str) -> bool {
    let info: RedisResult<InfoDict> = ask(server, &["INFO", "replication"]).await;
    info.is_ok_and(|info| info.get::<String>(key).as_deref() == Some(value))
}

async fn ask<T: redis::FromRedisValue>(server: &PrivateServer, command: &[&str]) -> RedisResult<T> {
    let mut connection = server::connect(server.url()).await?;
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
}

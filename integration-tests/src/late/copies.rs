//! Copies of messages that the server has received before, or receives later once more: on connections of their own.

use std::{net::SocketAddr, time::Duration};

use polylock_core::SystemClock;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::frames::{self, Protocol};
use crate::clock::now;

/// The time that a server has for a copy.
const LIMIT: Duration = Duration::from_secs(2);

/// A server to which messages are sent.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its address.
    pub address: SocketAddr,
    /// The URL of a database, for its driver.
    pub database: String,
}

impl Upstream {
    /// Sends a copy of a message, and waits for a reply. Returns false if a message can't be sent on another connection.
    pub async fn send_copy(&self, message: &[u8]) -> bool {
        match self.protocol {
            // The messages of a session, and compressed heads, belong to their connection.
            Protocol::ZooKeeper | Protocol::Http2 => false,
            Protocol::Redis | Protocol::Http => {
                SystemClock.before(now() + LIMIT, self.send_bytes(message)).await;
                true
            }
            Protocol::Postgres | Protocol::MySql => {
                let Some(sql) = frames::statement(self.protocol, message) else { return false };
                // An error is the reply of the server.
                SystemClock.before(now() + LIMIT, self.execute(sql)).await;
                true
            }
        }
    }

    async fn send_bytes(&self, message: &[u8]) -> std::io::Result<()> {
        let mut connection = TcpStream::connect(self.address).await?;
        connection.write_all(message).await?;
        connection.read(&mut [0; 1024]).await.map(drop)
    }

    async fn execute(&self, sql: String) -> sqlx::Result<()> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        if self.protocol == Protocol::Postgres {
            PgConnection::connect(&self.database).await?.execute(sql).await.map(drop)
        } else {
            MySqlConnection::connect(&self.database).await?.execute(sql).await.map(drop)
        }
    }
}

//! The commands that the servers of a store receive.

use std::{
    error::Error,
    io::{self, BufRead, BufReader, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use redis::InfoDict;
use sqlx::{ConnectOptions, Connection, Row, mysql::MySqlConnectOptions, postgres::PgConnectOptions};

use crate::{
    clock::pause,
    proxy::Proxy,
    servers::{Server, redis::connect, zookeeper},
};

/// A counter of the commands that the clients of a store have sent.
#[derive(Debug)]
pub enum Counter<'s> {
    /// Transactions, each of which is a statement of a store. A session reports them when it has been idle for a while.
    Postgres(&'s Server),
    /// Statements.
    MariaDb(&'s Server),
    /// Scripts and pings, at each of the servers: what a store of this library sends.
    Scripts(Vec<&'s Server>),
    /// All commands, at each of the servers.
    Commands(Vec<Monitor>),
    /// Packets at all of the servers, pings included.
    ZooKeeper(Vec<&'s Server>),
    /// HTTP requests.
    Azure(Proxy),
}

impl Counter<'_> {
    /// Returns the number of commands so far: of several Redis servers, the average.
    ///
    /// # Errors
    /// If a server does not reply.
    pub async fn sent(&self) -> Result<u64, Box<dyn Error + Send + Sync>> {
        Ok(match self {
            Self::Postgres(server) => {
                // The longest time for which an idle session keeps its counts to itself.
                pause(Duration::from_secs(11)).await;
                let mut connection = server.url().parse::<PgConnectOptions>()?.connect().await?;
                let sql = "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database";
                let sent: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
                connection.close().await?;
                sent.unsigned_abs()
            }
            Self::MariaDb(server) => {
                let mut connection = server.url().parse::<MySqlConnectOptions>()?.connect().await?;
                let sql = "SHOW GLOBAL STATUS LIKE 'Questions'";
                let sent: String = sqlx::raw_sql(sql).fetch_one(&mut connection).await?.try_get(1)?;
                connection.close().await?;
                sent.parse()?
            }
            Self::Scripts(nodes) => {
                let mut sent = 0;
                for node in nodes {
                    let mut connection = connect(node.url()).await?;
                    let mut info = redis::cmd("INFO");
                    let stats: InfoDict = info.arg("commandstats").query_async(&mut connection).await?;
                    let calls = |name: &str| -> u64 {
                        let stat: Option<String> = stats.get(&format!("cmdstat_{name}"));
                        let calls = stat
                            .and_then(|stat| stat.strip_prefix("calls=")?.split(',').next()?.parse().ok());
                        calls.unwrap_or(0)
                    };
                    sent += ["evalsha", "eval", "fcall", "ping"].map(calls).iter().sum::<u64>();
                }
                sent / nodes.len() as u64
            }
            Self::Commands(monitors) => {
                // The last lines of the monitors arrive.
                pause(Duration::from_millis(200)).await;
                let sent: u64 = monitors.iter().map(|monitor| monitor.commands.load(Relaxed)).sum();
                sent / monitors.len() as u64
            }
            Self::ZooKeeper(servers) => {
                let mut sent = 0;
                for server in servers {
                    sent += zookeeper::packets(server).await;
                }
                sent
            }
            Self::Azure(proxy) => proxy.counts().requests,
        })
    }
}

/// A client of a Redis server that receives all commands of the others, and counts them; commands in scripts are not counted.
#[derive(Debug)]
pub struct Monitor {
    commands: Arc<AtomicU64>,
    socket: TcpStream,
}

impl Monitor {
    /// Starts a monitor of the server at this port of 127.0.0.1.
    ///
    /// # Errors
    /// If it can't be reached.
    pub fn start(port: u16) -> io::Result<Self> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(socket.try_clone()?);
        lines.read_line(&mut String::new())?;
        let commands = Arc::<AtomicU64>::default();
        let counted = commands.clone();
        thread::spawn(move || {
            let all = lines.split(b'\n').map_while(Result::ok);
            all.filter(|line| is_from_client(line)).for_each(|_| {
                counted.fetch_add(1, Relaxed);
            });
        });
        Ok(Self { commands, socket })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Ends the thread; an error means that the connection has ended.
        self.socket.shutdown(Shutdown::Both).ok();
    }
}

/// Returns true if a client has sent the command of this line: `+TIME [DATABASE ADDRESS] COMMAND`, where the address in a script is `lua`.
fn is_from_client(line: &[u8]) -> bool {
    let end = line.iter().position(|byte| *byte == b']');
    end.is_some_and(|end| !line[..end].ends_with(b" lua"))
}

#[cfg(test)]
mod tests {
    use super::is_from_client;

    #[test]
    fn commands_in_scripts_are_not_counted() {
        assert!(is_from_client(b"+1339518083.107412 [0 127.0.0.1:60866] \"keys\" \"[0 lua]\"\r"));
        assert!(!is_from_client(b"+1339518087.877697 [0 lua] \"get\" \"x\"\r"));
        assert!(!is_from_client(b"\r"));
    }
}

//! A server that counts changed rows instead of found ones, as MySQL does unless the client requests found rows. sqlx does;
//! here a proxy removes that request, as some real ones do.

use polylock_sql::optimistic::Error;
use sqlx::{AssertSqlSafe, MySql, mysql::MySqlSslMode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{
    database::{Db, TestDatabase},
    token,
};

/// `CLIENT_FOUND_ROWS` in the first byte of the client's capabilities.
const FOUND_ROWS: u8 = 2;

/// Accepts connections on a free port, which it returns, and forwards them to `server`.
async fn proxy(server: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&server).await.unwrap();
            tokio::spawn(forward(client, server));
        }
    });
    port
}

async fn forward(mut client: TcpStream, mut server: TcpStream) -> std::io::Result<()> {
    let mut greeting = packet(&mut server).await?;
    client.write_all(&greeting).await?;
    greeting = packet(&mut client).await?;
    assert_ne!(greeting[4] & FOUND_ROWS, 0, "sqlx asks for found rows");
    greeting[4] &= !FOUND_ROWS;
    server.write_all(&greeting).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Reads one packet: three bytes of length, a sequence number, and the payload.
async fn packet(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut packet = vec![0; 4];
    stream.read_exact(&mut packet).await?;
    let length = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
    packet.resize(4 + length, 0);
    stream.read_exact(&mut packet[4..]).await?;
    Ok(packet)
}

#[tokio::test]
async fn a_count_of_changed_rows_is_not_mistaken_for_found_rows() {
    let Some(mut database) = TestDatabase::<MySql>::create().await else { return };
    let server = format!("{}:{}", database.options.get_host(), database.options.get_port());
    let options = database.options.clone().host("127.0.0.1").port(proxy(server).await);
    database.pool = MySql::pool(options.ssl_mode(MySqlSslMode::Disabled), MySql::ISOLATION_LEVELS[0]).await;
    let pool = &database.pool;

    database.fenced(5).execute(pool).await.unwrap();
    // A repeated write changes nothing, so the count is 0, as for an absent row.
    for id in [1, 2] {
        let same = format!("UPDATE {}_orders SET note = 5, fence = 5 WHERE id = {id}", database.name);
        let result = sqlx::query(AssertSqlSafe(same)).execute(pool).await.unwrap();
        assert_eq!(result.rows_affected(), 0);
    }
    database.fenced(5).execute(pool).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    database.fenced(5).execute(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(database.fenced(4).execute(pool).await.unwrap_err().is_stale());
    assert!(matches!(database.fenced_row(5, 2).execute(pool).await, Err(Error::Missing { .. })));
    assert_eq!(database.versioned(0, 5).execute(pool).await.unwrap(), 1);
    assert!(matches!(database.versioned(0, 5).execute(pool).await, Err(Error::Conflict { .. })));

    for (number, passes) in [(3, true), (3, true), (2, false), (4, true)] {
        let begun = database.fences.begin(pool, "x", token(number)).await;
        assert_eq!(begun.is_ok(), passes, "{begun:?}");
        if let Ok(transaction) = begun {
            transaction.commit().await.unwrap();
        }
    }
    assert!(database.written_tokens().await.iter().all(|note| *note == 5));
}

//! A server that counts changed rows instead of found ones, as MySQL does unless the client asks otherwise. sqlx does;
//! here something on the way takes that back, as some proxies do.

use polylock_sql::optimistic::Error;
use sqlx::{AssertSqlSafe, MySql, mysql::MySqlSslMode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{
    database::{Db, Place},
    token,
};

/// `CLIENT_FOUND_ROWS` in the first byte of the client's capabilities.
const FOUND_ROWS: u8 = 2;

/// Takes one connection after the other on a free port, which it tells, and hands them on to `server`.
async fn proxy(server: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&server).await.unwrap();
            tokio::spawn(hand_on(client, server));
        }
    });
    port
}

async fn hand_on(mut client: TcpStream, mut server: TcpStream) -> std::io::Result<()> {
    let mut greeting = packet(&mut server).await?;
    client.write_all(&greeting).await?;
    greeting = packet(&mut client).await?;
    assert_ne!(greeting[4] & FOUND_ROWS, 0, "sqlx asks for found rows");
    greeting[4] &= !FOUND_ROWS;
    server.write_all(&greeting).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// One packet: three bytes of length, one of number, and what it holds.
async fn packet(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut packet = vec![0; 4];
    stream.read_exact(&mut packet).await?;
    let length = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
    packet.resize(4 + length, 0);
    stream.read_exact(&mut packet[4..]).await?;
    Ok(packet)
}

#[tokio::test]
async fn a_count_of_changed_rows_is_not_taken_for_an_answer() {
    let Some(mut place) = Place::<MySql>::make().await else { return };
    let server = format!("{}:{}", place.options.get_host(), place.options.get_port());
    let options = place.options.clone().host("127.0.0.1").port(proxy(server).await);
    place.pool = MySql::pool(options.ssl_mode(MySqlSslMode::Disabled), MySql::LEVELS[0]).await;
    let pool = &place.pool;

    place.fenced(5).execute(pool).await.unwrap();
    // The same again changes nothing, and that is what a count would say, of this row and of one that is not there.
    for id in [1, 2] {
        let same = format!("UPDATE {}_orders SET note = 5, fence = 5 WHERE id = {id}", place.name);
        let result = sqlx::query(AssertSqlSafe(same)).execute(pool).await.unwrap();
        assert_eq!(result.rows_affected(), 0);
    }
    place.fenced(5).execute(pool).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    place.fenced(5).execute(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(place.fenced(4).execute(pool).await.unwrap_err().is_stale());
    assert!(matches!(place.fenced_row(5, 2).execute(pool).await, Err(Error::Missing { .. })));
    assert_eq!(place.versioned(0, 5).execute(pool).await.unwrap(), 1);
    assert!(matches!(place.versioned(0, 5).execute(pool).await, Err(Error::Conflict { .. })));

    for (number, passes) in [(3, true), (3, true), (2, false), (4, true)] {
        let begun = place.fences.begin(pool, "x", token(number)).await;
        assert_eq!(begun.is_ok(), passes, "{begun:?}");
        if let Ok(transaction) = begun {
            transaction.commit().await.unwrap();
        }
    }
    assert!(place.landed().await.iter().all(|note| *note == 5));
}

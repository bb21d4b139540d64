//! The disk of a server: snapshots, and a disk without room.

use polylock_testkit::Missing;

use super::{
    KINDS,
    session::{Session, stored},
};

#[tokio::test]
async fn a_restored_server_has_the_data_of_its_snapshot() {
    // The emulator of Azure caches its data.
    for (name, start) in KINDS.into_iter().filter(|(name, _)| *name != "azurite") {
        let server = start(&[]).unwrap();
        server.save();
        Session::open(server.url()).await.unwrap().store().await.unwrap();
        assert_eq!(stored(server.url()).await, "seven", "{name}");
        server.restore();
        assert!(Session::open(server.url()).await.unwrap().stored().await.is_err(), "{name}: stored later");
        Session::open(server.url()).await.unwrap().store().await.unwrap();
        server.save();
        server.restore();
        assert_eq!(stored(server.url()).await, "seven", "{name}");
    }
}

#[tokio::test]
async fn a_full_disk_fails_a_write_and_keeps_the_data() {
    let writes = [
        ("postgres", "CREATE TABLE big AS SELECT repeat('x', 1000) FROM generate_series(1, 300000)"),
        ("mariadb", "CREATE TABLE big AS SELECT repeat('x', 1000) x FROM seq_1_to_300000"),
        ("redis", "SET other seven"),
    ];
    for (name, write) in writes {
        let (_, start) = KINDS.into_iter().find(|(kind, _)| *kind == name).unwrap();
        let server = start(&[]).unwrap();
        if let Err(Missing(why)) = server.limit_disk() {
            println!("not tested: {why}");
            return;
        }
        let mut session = Session::open(server.url()).await.unwrap();
        session.store().await.unwrap();
        server.fill_disk();
        // Redis has room in the last block of its file.
        let mut attempts = 5000;
        while attempts > 0 && session.run(write).await.is_ok() {
            attempts -= 1;
        }
        assert!(attempts > 0, "{name}: every write succeeded");
        server.clear_disk();
        assert_eq!(stored(server.url()).await, "seven", "{name}");
    }
}

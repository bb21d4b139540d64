//! PostgreSQL and MariaDB.

use polylock_integration_tests::servers::{PrivateServer, mariadb, pgbouncer, postgres};

use super::{
    Start,
    session::{Session, query},
};

#[tokio::test]
async fn a_pooler_shares_one_backend_among_its_clients() {
    let server = postgres::start(&[]).unwrap();
    let pooler = pgbouncer::start(&server, &["default_pool_size=1"]).unwrap();
    let backend = "SELECT pg_backend_pid()::text";
    let (mut one, mut two) =
        (Session::open(pooler.url()).await.unwrap(), Session::open(pooler.url()).await.unwrap());
    assert_eq!(one.query(backend).await.unwrap(), two.query(backend).await.unwrap());
    let (mut one, mut two) =
        (Session::open(server.url()).await.unwrap(), Session::open(server.url()).await.unwrap());
    assert_ne!(one.query(backend).await.unwrap(), two.query(backend).await.unwrap());
}

#[tokio::test]
async fn a_servers_certificate_is_signed_by_its_own_authority() {
    for (start, other, mode, root, encrypted) in [
        (
            postgres::start_tls as Start,
            postgres::start_tls as Start,
            "sslmode=verify-full",
            "sslrootcert",
            "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
        ),
        (
            mariadb::start_tls,
            mariadb::start_tls,
            "ssl-mode=VERIFY_IDENTITY",
            "ssl-ca",
            "SELECT IF(variable_value > '', 'true', 'false') FROM information_schema.session_status \
             WHERE variable_name = 'Ssl_cipher'",
        ),
    ] {
        let (server, other) = (start(&[]).unwrap(), other(&[]).unwrap());
        let with = |authority: &PrivateServer| {
            let authority = authority.directory().join("ca.crt");
            format!("{}?{mode}&{root}={}", server.url(), authority.display())
        };
        assert_eq!(query(&with(&server), encrypted).await, "true");
        let refused = Session::open(&with(&other)).await.map(drop).expect_err("another authority");
        assert!(refused.to_string().contains("certificate"), "{refused}");
    }
}

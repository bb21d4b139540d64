//! Every key of a URL that is about encryption, as the pages describe it, against servers that encrypt and servers that do not.

use std::{path::Path, process::Command};

use polylock::{Error, Fault, Locks};
use polylock_integration_tests::servers::{PrivateServer, Server, mariadb, postgres};
use sqlx::{Connection, Executor, MySqlConnection, PgConnection};
use tokio::net::{TcpListener, TcpStream};

/// Acquires and releases a lock.
async fn assert_usable(url: &str) {
    let locks = Locks::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error:?}"));
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

/// The error's texts with those of its causes.
async fn refusal(url: &str) -> String {
    let Err(error) = Locks::connect(url).await else { panic!("{url} should be refused") };
    assert!(!error.is_temporary(), "another try does not mend it: {error:?}");
    let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The server at an address that its certificate does not name, as long as the runtime lasts.
async fn other_host_url(url: &str) -> String {
    let (_, rest) = url.split_once("@127.0.0.1:").unwrap();
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let target = format!("127.0.0.1:{port}");
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (from, to) = (format!("@{target}"), format!("@{address}"));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let target = target.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(target).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    url.replace(&from, &to)
}

/// The certificate of an authority that has signed nothing.
fn other_authority(directory: &Path) -> String {
    let file = directory.join("other.crt").display().to_string();
    let openssl = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=other", "-keyout", "/dev/null", "-out", &file])
        .output()
        .unwrap();
    assert!(openssl.status.success(), "{openssl:?}");
    file
}

/// The URL of `server` with tables of its own and these keys.
fn url(server: &Server, keys: &str) -> String {
    let url = server.url().replace("localhost", "127.0.0.1");
    format!("{url}?polylock.namespace={}&{keys}", server.name())
}

/// The names of the modes of a server, and the key of the authority's file.
struct Keys {
    mode: &'static str,
    ca: &'static str,
    verify_ca: &'static str,
    verify_full: &'static str,
    require: &'static str,
    prefer: &'static str,
    disable: &'static str,
}

const POSTGRES: Keys = Keys {
    mode: "sslmode",
    ca: "sslrootcert",
    verify_ca: "verify-ca",
    verify_full: "verify-full",
    require: "require",
    prefer: "prefer",
    disable: "disable",
};

const MYSQL: Keys = Keys {
    mode: "ssl-mode",
    ca: "ssl-ca",
    verify_ca: "verify_ca",
    verify_full: "verify_identity",
    require: "required",
    prefer: "preferred",
    disable: "disabled",
};

/// The modes on a server that accepts nothing but encrypted connections, and on one that does not encrypt.
async fn modes(names: &Keys, encrypting: &PrivateServer, plain: &Server) {
    let Keys { mode, ca, verify_ca, verify_full, require, prefer, disable } = names;
    let dir = encrypting.directory();
    let home = dir.display();
    let (own, other) = (format!("{ca}={home}/ca.crt"), format!("{ca}={}", other_authority(&dir)));
    let at = |keys: String| url(encrypting, &keys);

    for keys in [
        format!("{mode}={verify_full}&{own}"),
        format!("{mode}={verify_ca}&{own}"),
        format!("{mode}={require}"),
        format!("{mode}={prefer}"),
        // That is the default.
        String::new(),
    ] {
        assert_usable(&at(keys)).await;
    }
    // Any server is believed in, under any name, unless its certificate is to be checked.
    assert_usable(&other_host_url(&at(format!("{mode}={require}"))).await).await;
    assert_usable(&other_host_url(&at(format!("{mode}={verify_ca}&{own}"))).await).await;
    let text = refusal(&other_host_url(&at(format!("{mode}={verify_full}&{own}"))).await).await;
    assert!(text.contains("not valid for name"), "{text}");
    for verified in [verify_full, verify_ca] {
        for unknown in [other.as_str(), ""] {
            let text = refusal(&at(format!("{mode}={verified}&{unknown}"))).await;
            assert!(text.contains("certificate"), "{verified} {unknown}: {text}");
        }
        let missing = refusal(&at(format!("{mode}={verified}&{ca}={home}/nowhere.crt"))).await;
        assert!(missing.contains("No such file"), "{missing}");
    }
    // A file that would check nothing.
    for unchecked in [require, prefer, disable] {
        let text = refusal(&at(format!("{mode}={unchecked}&{own}"))).await;
        assert!(text.starts_with(ca) && text.contains(verify_full), "{unchecked}: {text}");
    }
    let error = Locks::connect(&at(format!("{mode}={disable}"))).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(error) if error.fault == Fault::Denied), "{error:?}");

    let at = |keys: String| url(plain, &keys);
    assert_usable(&at(format!("{mode}={disable}"))).await;
    assert_usable(&at(format!("{mode}={prefer}"))).await;
    assert_usable(&at(String::new())).await;
    for keys in [
        format!("{mode}={require}"),
        format!("{mode}={verify_ca}&{own}"),
        format!("{mode}={verify_full}&{own}"),
    ] {
        let text = refusal(&at(keys)).await;
        assert!(text.contains("does not support TLS"), "{text}");
    }
}

/// The keys of the certificate files that all stores share. `driver_ca` is the driver's key of the authority's file.
async fn common_keys(verified: &str, home: &str, driver_ca: &str) {
    let own = format!("polylock.tls_ca={home}/ca.crt");
    let client = format!("polylock.tls_cert={home}/server.crt&polylock.tls_key={home}/server.key");
    assert_usable(&format!("{verified}&{own}&{client}")).await;
    let text = refusal(&format!("{verified}&{client}")).await;
    assert!(text.contains("certificate"), "without the authority: {text}");
    let text = refusal(&format!("{verified}&{own}&polylock.tls_key={home}/server.key")).await;
    assert!(text.starts_with("polylock.tls_cert: requires polylock.tls_key"), "{text}");
    let text = refusal(&format!("{verified}&{own}&{driver_ca}={home}/ca.crt")).await;
    assert!(text.starts_with(&format!("{driver_ca}: is the same as polylock.tls_ca")), "{text}");
    let (unverified, _) = verified.split_once("&ssl").unwrap();
    let text = refusal(&format!("{unverified}&{own}")).await;
    assert!(text.starts_with("polylock.tls_ca: has no effect"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_of_postgres() {
    let server = postgres::start_tls(&["ssl_ca_file=../ca.crt"]).unwrap();
    let rules = server.directory().join("data/pg_hba.conf");
    // A client certificate contains the name of its user.
    std::fs::write(&rules, "hostssl all localhost all cert\nhostssl all all all trust\n").unwrap();
    let mut admin = PgConnection::connect(&format!("{}?sslmode=require", server.url())).await.unwrap();
    let role = "CREATE ROLE localhost LOGIN; GRANT ALL ON SCHEMA public TO localhost";
    admin.execute(role).await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    modes(&POSTGRES, &server, postgres().unwrap()).await;

    // The driver never tries without encryption first, and takes that for the whole of `allow`.
    let text = refusal(&url(&server, "sslmode=allow")).await;
    assert!(text.contains("no encryption"), "{text}");

    let directory = server.directory();
    let home = directory.display();
    let client = |keys: &str| url(&server, keys).replace("postgres@", "localhost@");
    let verified = format!("sslmode=verify-full&sslrootcert={home}/ca.crt");
    assert_usable(&client(&format!("{verified}&sslcert={home}/server.crt&sslkey={home}/server.key"))).await;
    let text = refusal(&client(&verified)).await;
    assert!(text.contains("certificate"), "{text}");
    let text = refusal(&client(&format!("{verified}&sslcert={home}/server.crt"))).await;
    assert!(text.contains("together"), "{text}");
    common_keys(&client("sslmode=verify-full"), &home.to_string(), "sslrootcert").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_of_mariadb() {
    let server = mariadb::start_tls(&["require_secure_transport=ON"]).unwrap();
    let admin = format!("{}?ssl-mode=required", server.url());
    let mut admin = MySqlConnection::connect(&admin).await.unwrap();
    admin.execute("CREATE USER sealed REQUIRE X509").await.unwrap();
    admin.execute("GRANT ALL ON polylock.* TO sealed").await.unwrap();
    modes(&MYSQL, &server, mariadb().unwrap()).await;

    let directory = server.directory();
    let home = directory.display();
    let client = |keys: &str| url(&server, keys).replace("root@", "sealed@");
    let verified = format!("ssl-mode=verify_identity&ssl-ca={home}/ca.crt");
    assert_usable(&client(&format!("{verified}&ssl-cert={home}/server.crt&ssl-key={home}/server.key"))).await;
    let short = format!("sslmode=verify_identity&sslca={home}/ca.crt");
    assert_usable(&client(&format!("{short}&sslcert={home}/server.crt&sslkey={home}/server.key"))).await;
    let text = refusal(&client(&verified)).await;
    assert!(text.contains("denied"), "{text}");
    let text = refusal(&client(&format!("{verified}&ssl-key={home}/server.key"))).await;
    assert!(text.contains("together"), "{text}");
    common_keys(&client("ssl-mode=verify_identity"), &home.to_string(), "sslca").await;
}

//! Azurite.

use polylock_integration_tests::{
    proxy::{Proxy, RequestFault},
    servers::{PrivateServer, azurite, azurite::TOKEN},
};

use super::session::{Session, stored};

const LEASE: &str = "11111111-1111-4111-8111-111111111111";
const OTHER: &str = "22222222-2222-4222-8222-222222222222";

/// Returns the request for a lease of the [stored](Session::store) blob.
fn acquire(id: &str) -> String {
    format!(
        "PUT /devstoreaccount1/kept/it?comp=lease\nx-ms-lease-action: acquire\nx-ms-lease-duration: 60\n\
         x-ms-proposed-lease-id: {id}"
    )
}

async fn expect_response(url: &str, request: &str, part: &str) {
    let response = azurite::ask(url, request).await.unwrap();
    assert!(response.contains(part), "{request}: {response}");
}

#[tokio::test]
async fn a_server_without_persistence_restarts_empty() {
    let server = azurite::start(&[]).unwrap();
    Session::open(server.url()).await.unwrap().store().await.unwrap();
    assert_eq!(stored(server.url()).await, "seven");
    server.restart();
    expect_response(server.url(), "GET /devstoreaccount1/kept/it", "x-ms-error-code: ContainerNotFound")
        .await;
}

#[tokio::test]
async fn a_lease_outlives_a_killed_server() {
    let server = azurite::start(azurite::DURABLE).unwrap();
    Session::open(server.url()).await.unwrap().store().await.unwrap();
    expect_response(server.url(), &acquire(LEASE), "HTTP/1.1 201 ").await;
    for _ in 0..2 {
        server.restart();
        expect_response(server.url(), &acquire(OTHER), "x-ms-error-code: LeaseAlreadyPresent").await;
        let renew = "PUT /devstoreaccount1/kept/it?comp=lease\nx-ms-lease-action: renew\nx-ms-lease-id: ";
        expect_response(server.url(), &format!("{renew}{LEASE}"), "HTTP/1.1 200 ").await;
    }
    let end =
        "PUT /devstoreaccount1/kept/it?comp=lease\nx-ms-lease-action: break\nx-ms-lease-break-period: 0";
    expect_response(server.url(), end, "HTTP/1.1 202 ").await;
    server.restart();
    expect_response(server.url(), &acquire(OTHER), "HTTP/1.1 201 ").await;
}

#[tokio::test]
async fn two_servers_are_independent() {
    let (one, two) = (azurite::start(&[]).unwrap(), azurite::start(&[]).unwrap());
    assert_ne!(one.port(), two.port());
    Session::open(one.url()).await.unwrap().store().await.unwrap();
    expect_response(two.url(), "GET /devstoreaccount1/kept/it", "x-ms-error-code: ContainerNotFound").await;
    assert_eq!(stored(one.url()).await, "seven");
}

#[tokio::test]
async fn a_lease_with_a_lost_response_is_acquired() {
    let server = azurite::start(&[]).unwrap();
    let proxy = Proxy::to_http(server.port());
    let through = proxy.url(server.url());
    Session::open(&through).await.unwrap().store().await.unwrap();
    let acquire_parts = ["comp=lease", "x-ms-lease-action: acquire"];
    proxy.fault_next(acquire_parts, RequestFault::Reset);
    azurite::ask(&through, &acquire(OTHER)).await.expect_err("no response");
    proxy.fault_next(acquire_parts, RequestFault::ResetBeforeReply);
    assert_eq!(stored(&through).await, "seven", "another request");
    azurite::ask(&through, &acquire(LEASE)).await.expect_err("no response");
    assert_eq!((proxy.counts().faulted, proxy.counts().resets_before_reply), (2, 1));
    expect_response(&through, &acquire(OTHER), "x-ms-error-code: LeaseAlreadyPresent").await;
    expect_response(&through, &acquire(LEASE), "HTTP/1.1 201 ").await;
}

#[tokio::test]
async fn a_setting_reaches_the_server() {
    let newer = "GET /devstoreaccount1?comp=list\nx-ms-version: 2099-01-01";
    for (settings, response) in [(&[][..], "HTTP/1.1 400 "), (&["skipApiVersionCheck"], "HTTP/1.1 200 ")] {
        let server = azurite::start(settings).unwrap();
        expect_response(server.url(), newer, response).await;
    }
}

#[tokio::test]
async fn the_url_names_a_container() {
    for server in [azurite().unwrap(), &*azurite::start(&[]).unwrap()] {
        let port = server.url().strip_prefix("az://polylock@devstoreaccount1?emulator=http://127.0.0.1:");
        port.and_then(|port| port.parse::<u16>().ok()).unwrap_or_else(|| panic!("{}", server.url()));
        expect_response(server.url(), "GET /devstoreaccount1?comp=list", "HTTP/1.1 200 ").await;
    }
}

#[tokio::test]
async fn a_server_with_tls_accepts_a_token_and_only_tls() {
    let (server, other) = [(); 2].map(|()| azurite::start_tls(azurite::DURABLE).unwrap()).into();
    assert!(server.url().contains("emulator=https://"), "{}", server.url());
    let query = async |authority: &PrivateServer, token: &str, request: &str| {
        let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
        let request = format!("{line}\nAuthorization: Bearer {token}\n{headers}");
        azurite::ask_tls(server.url(), &authority.directory(), &request).await
    };
    let put = ["kept?restype=container", "kept/it\nx-ms-blob-type: BlockBlob"];
    for path in put {
        let response = query(&server, TOKEN, &format!("PUT /devstoreaccount1/{path}")).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 201 "), "{response}");
    }
    server.restart();
    let get = "GET /devstoreaccount1/kept/it";
    let response = query(&server, TOKEN, get).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let response = query(&server, "none", get).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
    query(&other, TOKEN, get).await.expect_err("another authority");
    azurite::ask(server.url(), get).await.expect_err("without TLS");
}

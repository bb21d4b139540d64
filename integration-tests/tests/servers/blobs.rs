//! Azurite.

use polylock_integration_tests::{
    proxy::{Fate, Proxy},
    servers::{Private, azurite, azurite::TOKEN},
};

use super::session::{Session, kept};

const LEASE: &str = "11111111-1111-4111-8111-111111111111";
const OTHER: &str = "22222222-2222-4222-8222-222222222222";

/// The request for a lease of the blob that is [kept](Session::keep).
fn acquire(id: &str) -> String {
    format!(
        "PUT /devstoreaccount1/kept/it?comp=lease\nx-ms-lease-action: acquire\nx-ms-lease-duration: 60\n\
         x-ms-proposed-lease-id: {id}"
    )
}

async fn says(url: &str, request: &str, what: &str) {
    let answer = azurite::ask(url, request).await.unwrap();
    assert!(answer.contains(what), "{request}: {answer}");
}

#[tokio::test]
async fn one_that_keeps_nothing_comes_back_empty() {
    let server = azurite::start(&[]).unwrap();
    Session::open(server.url()).await.unwrap().keep().await.unwrap();
    assert_eq!(kept(server.url()).await, "seven");
    server.restart();
    says(server.url(), "GET /devstoreaccount1/kept/it", "x-ms-error-code: ContainerNotFound").await;
}

#[tokio::test]
async fn a_lease_outlives_a_killed_server() {
    let server = azurite::start(azurite::DURABLE).unwrap();
    Session::open(server.url()).await.unwrap().keep().await.unwrap();
    says(server.url(), &acquire(LEASE), "HTTP/1.1 201 ").await;
    for _ in 0..2 {
        server.restart();
        says(server.url(), &acquire(OTHER), "x-ms-error-code: LeaseAlreadyPresent").await;
        let renew = "PUT /devstoreaccount1/kept/it?comp=lease\nx-ms-lease-action: renew\nx-ms-lease-id: ";
        says(server.url(), &format!("{renew}{LEASE}"), "HTTP/1.1 200 ").await;
    }
    let end =
        "PUT /devstoreaccount1/kept/it?comp=lease\nx-ms-lease-action: break\nx-ms-lease-break-period: 0";
    says(server.url(), end, "HTTP/1.1 202 ").await;
    server.restart();
    says(server.url(), &acquire(OTHER), "HTTP/1.1 201 ").await;
}

#[tokio::test]
async fn two_know_nothing_of_each_other() {
    let (one, two) = (azurite::start(&[]).unwrap(), azurite::start(&[]).unwrap());
    assert_ne!(one.port(), two.port());
    Session::open(one.url()).await.unwrap().keep().await.unwrap();
    says(two.url(), "GET /devstoreaccount1/kept/it", "x-ms-error-code: ContainerNotFound").await;
    assert_eq!(kept(one.url()).await, "seven");
}

#[tokio::test]
async fn a_lease_whose_answer_is_lost_is_taken() {
    let server = azurite::start(&[]).unwrap();
    let proxy = Proxy::to_http(server.port());
    let through = proxy.url(server.url());
    Session::open(&through).await.unwrap().keep().await.unwrap();
    let taking = ["comp=lease", "x-ms-lease-action: acquire"];
    proxy.next(taking, Fate::Cut);
    azurite::ask(&through, &acquire(OTHER)).await.expect_err("no answer");
    proxy.next(taking, Fate::CutReply);
    assert_eq!(kept(&through).await, "seven", "another request");
    azurite::ask(&through, &acquire(LEASE)).await.expect_err("no answer");
    assert_eq!((proxy.counts().fated, proxy.counts().cut_replies), (2, 1));
    says(&through, &acquire(OTHER), "x-ms-error-code: LeaseAlreadyPresent").await;
    says(&through, &acquire(LEASE), "HTTP/1.1 201 ").await;
}

#[tokio::test]
async fn a_setting_reaches_it() {
    let newer = "GET /devstoreaccount1?comp=list\nx-ms-version: 2099-01-01";
    for (settings, answer) in [(&[][..], "HTTP/1.1 400 "), (&["skipApiVersionCheck"], "HTTP/1.1 200 ")] {
        let server = azurite::start(settings).unwrap();
        says(server.url(), newer, answer).await;
    }
}

#[tokio::test]
async fn its_url_is_that_of_a_container() {
    for server in [azurite().unwrap(), &*azurite::start(&[]).unwrap()] {
        let port = server.url().strip_prefix("az://polylock@devstoreaccount1?emulator=http://127.0.0.1:");
        port.and_then(|port| port.parse::<u16>().ok()).unwrap_or_else(|| panic!("{}", server.url()));
        says(server.url(), "GET /devstoreaccount1?comp=list", "HTTP/1.1 200 ").await;
    }
}

#[tokio::test]
async fn one_with_tls_takes_a_token_and_speaks_nothing_else() {
    let (server, other) = [(); 2].map(|()| azurite::start_tls(azurite::DURABLE).unwrap()).into();
    assert!(server.url().contains("emulator=https://"), "{}", server.url());
    let ask = async |authority: &Private, token: &str, request: &str| {
        let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
        let request = format!("{line}\nAuthorization: Bearer {token}\n{headers}");
        azurite::ask_tls(server.url(), &authority.directory(), &request).await
    };
    let put = ["kept?restype=container", "kept/it\nx-ms-blob-type: BlockBlob"];
    for what in put {
        let answer = ask(&server, TOKEN, &format!("PUT /devstoreaccount1/{what}")).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    }
    server.restart();
    let get = "GET /devstoreaccount1/kept/it";
    let answer = ask(&server, TOKEN, get).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let answer = ask(&server, "none", get).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    ask(&other, TOKEN, get).await.expect_err("a stranger's");
    azurite::ask(server.url(), get).await.expect_err("without TLS");
}

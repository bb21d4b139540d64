//! Connections to servers, and errors that state the cause for each unusable server.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use polylock::{Fault, Locks};
use polylock_integration_tests::{
    clock::{TIMEOUT, now},
    proxy::{Flow, Proxy},
    servers::{PrivateServer, Server, redlock::Dead, zookeeper},
};
use tokio::net::{TcpSocket, TcpStream};

use super::{Namespace, SLACK, check_all_operations, refusal};

/// The time limit for opening a store in these tests.
const LIMIT: Duration = Duration::from_millis(600);

/// Returns the URL of these servers with that limit.
fn limited(servers: &str) -> String {
    format!("zookeeper://u:canary@{servers}/x?polylock.connect_timeout=600ms")
}

/// Checks that opening fails in time with a temporary error, and returns its text.
async fn check_unreachable(url: &str) -> String {
    let (fault, text, took) = refusal(url).await;
    assert!(fault == Some(Fault::Temporary) && !text.contains("canary"), "{fault:?}: {text}");
    assert!(took < LIMIT + SLACK, "{took:?}");
    text
}

/// Checks the same of an error that contains all these parts. The search for the cause ends with the time limit, so a busy server may
/// reply too late for it: then the store is opened again.
async fn check_cause(url: &str, parts: &[&str]) {
    let limit = now() + TIMEOUT;
    loop {
        let text = check_unreachable(url).await;
        let Some(missing) = parts.iter().find(|part| !text.contains(**part)) else { return };
        assert!(now() < limit, "{missing}: {text}");
    }
}

/// Returns a port of 127.0.0.1 that neither accepts nor refuses connections, as behind a firewall.
async fn firewall() -> (tokio::net::TcpListener, Vec<TcpStream>, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    // Until the backlog of the listener is full.
    while let Ok(connected) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
    {
        waiting.push(connected.unwrap());
    }
    (listener, waiting, address.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port() {
    let closed = Dead::new();
    let dead = closed.url().replace("redis://", "");
    check_cause(&limited(&dead), &[&format!("{dead}: Connection refused")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_host_name() {
    let text = check_unreachable(&limited("no-such-host.invalid")).await;
    assert!(text.contains("no-such-host.invalid:2181: "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_accept_and_never_reply() {
    let server = zookeeper::start(&[]).unwrap();
    let proxy = Proxy::to(server.port());
    for flow in [Flow::Hold, Flow::Stall, Flow::Drop] {
        proxy.set_both(flow);
        let cause = format!("{}: reachable, but opens no session", proxy.address());
        check_cause(&limited(&proxy.address().to_string()), &[&cause]).await;
    }
    // The default connect timeout bounds the wait.
    let (fault, _, took) = refusal(&proxy.url(server.url())).await;
    assert!(fault == Some(Fault::Temporary) && took < Duration::from_secs(5) + SLACK, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_states_the_cause_for_each_server() {
    let (_listener, _waiting, firewall) = firewall().await;
    let closed = Dead::new();
    let dead = closed.url().replace("redis://", "");
    let server = zookeeper::start(&[]).unwrap();
    let silent = Proxy::to(server.port());
    silent.set_both(Flow::Drop);
    let servers = format!("{dead},{firewall},{},no-such-host.invalid:7", silent.address());
    let causes = [
        format!("{dead}: Connection refused"),
        format!("{firewall}: no reply"),
        format!("{}: reachable, but opens no session", silent.address()),
        "no-such-host.invalid:7: ".to_owned(),
    ];
    check_cause(&limited(&servers), &causes.each_ref().map(String::as_str)).await;
    // One usable server is sufficient, at any position.
    let servers = format!("{dead},no-such-host.invalid:7,127.0.0.1:{}", server.port());
    check_all_operations(&format!("zookeeper://{servers}/x")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_minority_mentions_the_majority() {
    let ensemble = zookeeper::ensemble(3, &[]).unwrap();
    let [left, others @ ..] = ensemble.members() else { panic!("three") };
    tokio::task::block_in_place(|| others.iter().for_each(PrivateServer::kill));
    let alone = format!(
        "127.0.0.1:{}: reachable, but opens no session: does the ensemble have a majority, and room for this host (maxClientCnxns)?",
        left.port()
    );
    let url = format!("{}?polylock.connect_timeout=600ms", ensemble.url());
    check_cause(&url, &[&alone, "Connection refused"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_other_protocols() {
    for answer in
        ["HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "\0\u{1}\u{2}\u{3}\n", "\0\0\0\0\0\0\0\0"]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0)
                    && stream.write_all(answer.as_bytes()).is_ok()
                {}
            }
        });
        let text = check_unreachable(&limited(&address)).await;
        assert!(text.contains(&address), "{answer:?}: {text}");
    }
}

/// Returns the URL of a TLS server at another address, for which its certificate is not valid.
async fn by_another_name(server: &PrivateServer) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
    let (address, port) = (listener.local_addr().unwrap(), server.port());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    server.url().replace(&format!("127.0.0.1:{port}"), &address.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn encryption_needs_the_authority_of_the_server() {
    let (server, other) = (zookeeper::start_tls(&[]).unwrap(), zookeeper::start_tls(&[]).unwrap());
    let of = |server: &PrivateServer, url: &str| {
        format!("{url}/x?polylock.tls_ca={}", server.directory().join("ca.crt").display())
    };
    check_all_operations(&of(&server, server.url())).await;
    check_all_operations(&of(&server, &server.url().replace("127.0.0.1", "localhost"))).await;

    // A configuration without an authority is invalid.
    let (fault, text, _) = refusal(server.url()).await;
    assert!(fault.is_none() && text.contains("polylock.tls_ca"), "{text}");
    for (why, url) in [
        ("invalid peer certificate", of(&other, server.url())),
        ("not valid for name", of(&server, &by_another_name(&server).await)),
    ] {
        check_cause(&format!("{url}&polylock.connect_timeout=600ms"), &[why, "polylock.tls_ca"]).await;
    }
    // Without TLS to a TLS port, and the reverse.
    let plain = server.url().replace("zookeeper+tls:", "zookeeper:");
    check_unreachable(&format!("{plain}?polylock.connect_timeout=600ms")).await;
    let unencrypted = zookeeper::start(&[]).unwrap();
    let url = unencrypted.url().replace("zookeeper:", "zookeeper+tls:");
    let url = format!("{}&polylock.connect_timeout=600ms", of(&server, &url));
    check_cause(&url, &["no encrypted connection"]).await;
}

/// The server requires a client certificate, which is the default.
#[tokio::test(flavor = "multi_thread")]
async fn encryption_with_client_certificates() {
    let server = zookeeper::start_tls(&["ssl.clientAuth=need"]).unwrap();
    let file = |name: &str| server.directory().join(name).display().to_string();
    let without = format!("{}/x?polylock.tls_ca={}", server.url(), file("ca.crt"));
    let with =
        format!("{without}&polylock.tls_cert={}&polylock.tls_key={}", file("server.crt"), file("server.key"));
    check_all_operations(&with).await;
    let url = format!("{without}&polylock.connect_timeout=600ms");
    check_cause(&url, &["no encrypted connection", "polylock.tls_cert"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_ipv6() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let Ok(listener) = tokio::net::TcpListener::bind("[::1]:0").await else {
        return println!("this machine has no IPv6");
    };
    let (address, port) = (listener.local_addr().unwrap(), server.port());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await.ok() });
        }
    });
    let url =
        |server: &Server| namespace.url.replace(&server.url()["zookeeper://".len()..], &address.to_string());
    let there = Locks::connect(&url(&server)).await.unwrap();
    let here = Locks::connect(&namespace.url).await.unwrap();
    let guard = there.lock("a").acquire().await.unwrap();
    assert!(here.lock("a").try_acquire().await.unwrap().is_none(), "the same locks");
    guard.release().await.unwrap();
}

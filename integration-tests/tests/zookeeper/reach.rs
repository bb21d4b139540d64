//! How servers are reached, and what is no server at all: the error says of each of them why.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use polylock::{Fault, Locks};
use polylock_integration_tests::{
    proxy::{Flow, Proxy},
    servers::{Private, Server, redlock::Dead, zookeeper},
};
use tokio::net::{TcpSocket, TcpStream};

use crate::{SLACK, Spot, everything_works, refusal};

/// How long it may take to open a store in these tests.
const LIMIT: Duration = Duration::from_millis(600);

/// The URL of these servers, with that limit.
fn limited(servers: &str) -> String {
    format!("zookeeper://u:canary@{servers}/x?polylock.connect_timeout=600ms")
}

/// It is refused for the moment, in time; what is told.
async fn out_of_reach(url: &str) -> String {
    let (fault, text, took) = refusal(url).await;
    assert!(fault == Some(Fault::Temporary) && !text.contains("canary"), "{fault:?}: {text}");
    assert!(took < LIMIT + SLACK, "{took:?}");
    text
}

/// A port of 127.0.0.1 where connections are neither made nor refused, as behind a firewall.
async fn firewall() -> (tokio::net::TcpListener, Vec<TcpStream>, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    // Until there is no room any more among those that nobody accepts.
    while let Ok(connected) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
    {
        waiting.push(connected.unwrap());
    }
    (listener, waiting, address.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_listens() {
    let nobody = Dead::new();
    let dead = nobody.url().replace("redis://", "");
    let text = out_of_reach(&limited(&dead)).await;
    assert!(text.contains(&format!("{dead}: Connection refused")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_nobody_has() {
    let text = out_of_reach(&limited("no-such-host.invalid")).await;
    assert!(text.contains("no-such-host.invalid:2181: "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_accept_and_never_answer() {
    let server = zookeeper::start(&[]).unwrap();
    let proxy = Proxy::to(server.port());
    for flow in [Flow::Hold, Flow::Stall, Flow::Swallow] {
        proxy.set_both(flow);
        let text = out_of_reach(&limited(&proxy.address().to_string())).await;
        assert!(text.contains(&format!("{}: answers, and opens no session", proxy.address())), "{text}");
    }
    // By default it takes what a single server may be silent, and not all the time there is.
    let (fault, _, took) = refusal(&proxy.url(server.url())).await;
    assert!(fault == Some(Fault::Temporary) && took < Duration::from_secs(5) + SLACK, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_each_server_it_is_said_why() {
    let (_listener, _waiting, firewall) = firewall().await;
    let nobody = Dead::new();
    let dead = nobody.url().replace("redis://", "");
    let server = zookeeper::start(&[]).unwrap();
    let silent = Proxy::to(server.port());
    silent.set_both(Flow::Swallow);
    let servers = format!("{dead},{firewall},{},no-such-host.invalid:7", silent.address());
    let text = out_of_reach(&limited(&servers)).await;
    for part in [
        format!("{dead}: Connection refused"),
        format!("{firewall}: no answer"),
        format!("{}: answers, and opens no session", silent.address()),
        "no-such-host.invalid:7: ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    // One that serves is enough, wherever it stands.
    let servers = format!("{dead},no-such-host.invalid:7,127.0.0.1:{}", server.port());
    everything_works(&format!("zookeeper://{servers}/x")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_of_an_ensemble_is_said_to_lack_a_majority() {
    let ensemble = zookeeper::ensemble(3, &[]).unwrap();
    let [left, others @ ..] = ensemble.members() else { panic!("three") };
    tokio::task::block_in_place(|| others.iter().for_each(Private::kill));
    let text = out_of_reach(&format!("{}?polylock.connect_timeout=600ms", ensemble.url())).await;
    let alone = format!(
        "127.0.0.1:{}: answers, and opens no session: does the ensemble have a majority?",
        left.port()
    );
    assert!(text.contains(&alone) && text.contains("Connection refused"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_zookeeper_at_all() {
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
        let text = out_of_reach(&limited(&address)).await;
        assert!(text.contains(&address), "{answer:?}: {text}");
    }
}

/// A server with TLS at another address of this machine, for which its certificate is not.
async fn by_another_name(server: &Private) -> String {
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
async fn encrypted_with_an_authority_of_its_own_and_not_without() {
    let (server, other) = (zookeeper::start_tls(&[]).unwrap(), zookeeper::start_tls(&[]).unwrap());
    let of = |server: &Private, url: &str| {
        format!("{url}/x?polylock.tls_ca={}", server.directory().join("ca.crt").display())
    };
    everything_works(&of(&server, server.url())).await;
    everything_works(&of(&server, &server.url().replace("127.0.0.1", "localhost"))).await;

    // No authority at all is no configuration.
    let (fault, text, _) = refusal(server.url()).await;
    assert!(fault.is_none() && text.contains("polylock.tls_ca"), "{text}");
    for (why, url) in [
        ("invalid peer certificate", of(&other, server.url())),
        ("not valid for name", of(&server, &by_another_name(&server).await)),
    ] {
        let text = out_of_reach(&format!("{url}&polylock.connect_timeout=600ms")).await;
        assert!(text.contains(why) && text.contains("polylock.tls_ca"), "{why}: {text}");
    }
    // Each with the other's way of speaking.
    let plain = server.url().replace("zookeeper+tls:", "zookeeper:");
    out_of_reach(&format!("{plain}?polylock.connect_timeout=600ms")).await;
    let unencrypted = zookeeper::start(&[]).unwrap();
    let url = unencrypted.url().replace("zookeeper:", "zookeeper+tls:");
    let text = out_of_reach(&format!("{}&polylock.connect_timeout=600ms", of(&server, &url))).await;
    assert!(text.contains("no encrypted connection"), "{text}");
}

/// A server that asks for the client's certificate, which is what most are set to do.
#[tokio::test(flavor = "multi_thread")]
async fn encrypted_for_clients_that_have_a_certificate() {
    let server = zookeeper::start_tls(&["ssl.clientAuth=need"]).unwrap();
    let file = |name: &str| server.directory().join(name).display().to_string();
    let without = format!("{}/x?polylock.tls_ca={}", server.url(), file("ca.crt"));
    let with =
        format!("{without}&polylock.tls_cert={}&polylock.tls_key={}", file("server.crt"), file("server.key"));
    everything_works(&with).await;
    let text = out_of_reach(&format!("{without}&polylock.connect_timeout=600ms")).await;
    assert!(text.contains("no encrypted connection") && text.contains("polylock.tls_cert"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_sixth_version_of_the_protocol() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let Ok(listener) = tokio::net::TcpListener::bind("[::1]:0").await else {
        return println!("this machine has none");
    };
    let (address, port) = (listener.local_addr().unwrap(), server.port());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await.ok() });
        }
    });
    let url = |server: &Server| spot.url.replace(&server.url()["zookeeper://".len()..], &address.to_string());
    let there = Locks::connect(&url(&server)).await.unwrap();
    let here = Locks::connect(&spot.url).await.unwrap();
    let guard = there.lock("a").acquire().await.unwrap();
    assert!(here.lock("a").try_acquire().await.unwrap().is_none(), "the same locks");
    guard.release().await.unwrap();
}

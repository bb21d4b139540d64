//! Keys, signatures, tokens and lease ids appear in no output and no trace, including those of the SDK and the HTTP client.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use polylock::Locks;
use polylock_azure::Config;
use polylock_integration_tests::{
    alone,
    servers::azurite::{self, KEY, SAS, TOKEN},
    trace,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{
    Namespace,
    errors::{opened, signature, with_token},
    refusal, server,
};

/// The traced lines that may contain a secret.
#[derive(Default)]
struct TraceFilter {
    sdk_lines: AtomicU64,
    /// Lines with a GUID, which may be a lease id.
    suspects: Mutex<Vec<String>>,
    leaks: Mutex<Vec<String>>,
}

static FILTER: TraceFilter = TraceFilter {
    sdk_lines: AtomicU64::new(0),
    suspects: Mutex::new(Vec::new()),
    leaks: Mutex::new(Vec::new()),
};

impl TraceFilter {
    fn record(&self, target: &str, line: &str) {
        if target.starts_with("typespec") || target.starts_with("azure_core") {
            self.sdk_lines.fetch_add(1, Ordering::Relaxed);
        }
        let keep = |lines: &Mutex<Vec<String>>| {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        };
        if has_secret(line) {
            keep(&self.leaks);
        }
        if has_guid(line) {
            keep(&self.suspects);
        }
    }
}

/// A part of the keys and signatures of this test that is the same in every encoding.
const CANARY: &str = "Y2FuYXJ5Y2FuYXJ5";

/// Returns true if `text` contains a key, a signature or a token.
fn has_secret(text: &str) -> bool {
    let (_, sig) = SAS.split_once("sig=").unwrap_or_default();
    [&KEY[..16], &sig[..16], &TOKEN[40..60], CANARY].iter().any(|secret| text.contains(secret))
}

/// Returns true if `text` may contain a lease id, with or without dashes.
fn has_guid(text: &str) -> bool {
    let mut digits = 0;
    text.bytes().any(|byte| {
        match byte {
            b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' => digits += 1,
            b'-' => {}
            _ => digits = 0,
        }
        digits >= 32
    })
}

/// Starts a proxy to the server at `port` that records all requests of its clients.
async fn recording_proxy(port: u16) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, requests) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let all = requests.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let requests = requests.clone();
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                let ((mut from, mut to), (mut back, mut forth)) = (client.into_split(), server.into_split());
                let answers = tokio::spawn(async move { tokio::io::copy(&mut back, &mut to).await });
                let mut buffer = vec![0; 65536];
                while let Ok(read @ 1..) = from.read(&mut buffer).await {
                    requests.lock().unwrap().extend_from_slice(&buffer[..read]);
                    if forth.write_all(&buffer[..read]).await.is_err() {
                        break;
                    }
                }
                drop(forth);
                answers.await.ok();
            });
        }
    });
    (address, all)
}

/// Returns the lease ids in requests.
fn ids(requests: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(requests).into_owned();
    let id = |line: &str| {
        let (header, id) = line.split_once(": ")?;
        (header.starts_with("x-ms-") && header.ends_with("lease-id")).then(|| id.trim().to_owned())
    };
    let mut ids: Vec<String> = text.lines().filter_map(id).collect();
    ids.sort();
    ids.dedup();
    ids
}

alone! { appear_in_no_output_and_no_trace }

async fn appear_in_no_output_and_no_trace() {
    trace::listen(|target, line| FILTER.record(target, line));
    tracing::debug!("the key is {KEY}");
    tracing::trace!(id = "11111111-1111-4111-8111-111111111111", "a lease");
    assert_eq!(std::mem::take(&mut *FILTER.leaks.lock().unwrap()).len(), 1, "a secret is found");
    assert!(!std::mem::take(&mut *FILTER.suspects.lock().unwrap()).is_empty(), "a GUID is found");

    let namespace = Namespace::of(server());
    let (address, requests) = recording_proxy(server().port()).await;
    let url = namespace.url.replace(&format!("127.0.0.1:{}", server().port()), &address.to_string());
    let mut texts = Vec::new();
    let encoded: String = KEY.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let connection = format!(
        "polylock.connection_string=AccountName%3D{}%3BAccountKey%3D{encoded}%3BBlobEndpoint%3Dhttp%3A%2F%2F{address}%2F{}",
        azurite::ACCOUNT,
        azurite::ACCOUNT
    );
    let bare = url.split_once('?').unwrap().0;
    for url in [
        url.clone(),
        format!("{url}&polylock.account_key={encoded}"),
        format!("{bare}?{connection}"),
        format!("{url}&{SAS}"),
    ] {
        let locks = Locks::connect(&url).await.unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        texts.push(format!("{locks:?} {:?} {guard:?} {:?}", locks.lock("a"), Config::new(&url)));
        texts.push(format!("{:?} {:?}", locks.inspect("a").await.unwrap(), locks.list("").await.unwrap()));
        let wait = Duration::from_millis(200);
        texts.push(format!("{:?}", locks.lock("a").wait(wait).acquire().await.unwrap_err()));
        // The error of the service repeats the request.
        namespace.break_lease("a").await;
        texts.push(format!("{:?}", guard.release().await));
        texts.push(format!("{:?}", locks.break_lock("a").await));
    }
    let wrong = format!("{url}&polylock.account_key={CANARY}");
    let forged =
        format!("{url}&{}", signature("r", "2099-12-31T00:00:00Z").replace("sig=", &format!("sig={CANARY}")));
    let malformed = format!("{url}&polylock.account_key=%21{CANARY}");
    let unknown = format!("{bare}?polylock.connection_string=AccountKey%3D{CANARY}");
    let nowhere = format!(
        "az://locks@nobody?polylock.endpoint=http://127.0.0.1:1&sig={CANARY}&polylock.connect_timeout=200ms"
    );
    for url in [wrong, forged, malformed, unknown, nowhere] {
        texts.push(refusal(&url).await.1);
    }
    let reader = Locks::connect(&format!("{url}&{}", signature("rl", "2099-12-31T00:00:00Z"))).await.unwrap();
    texts.push(format!("{:?}", reader.lock("a").acquire().await.map(drop)));
    let tls = azurite::start_tls(&[]).unwrap();
    let tokens = with_token(&tls, Some(TOKEN));
    texts.push(format!("{tokens:?}"));
    let locks = opened(tokens).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    texts.push(format!("{locks:?} {guard:?}"));
    tls.kill();
    texts.push(format!("{:?}", locks.lock("b").try_acquire().await.map(drop)));
    drop((guard, locks, reader));

    let ids = ids(&requests.lock().unwrap());
    assert!(ids.len() >= 5, "too few lease ids: {ids:?}");
    let suspects = FILTER.suspects.lock().unwrap().join("\n");
    for text in texts.iter().chain([&suspects]) {
        let text = text.to_lowercase().replace('-', "");
        for id in &ids {
            assert!(!text.contains(&id.replace('-', "")), "{id}");
        }
    }
    for text in texts {
        assert!(!has_secret(&text), "{text}");
    }
    println!("{} lines of the SDK, {} leases", FILTER.sdk_lines.load(Ordering::Relaxed), ids.len());
    assert!(FILTER.sdk_lines.load(Ordering::Relaxed) > 20, "the SDK was not traced");
    assert_eq!(*FILTER.leaks.lock().unwrap(), [""; 0]);
}

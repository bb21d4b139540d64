//! Refusals by the service, and changes by administrators: each is reported with a remedy.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock::{Error, Fault, Locks, LostReason};
use polylock_azure::{
    Config,
    azure_core::{
        self,
        credentials::{AccessToken, Secret, TokenCredential, TokenRequestOptions},
        error::ErrorKind,
        hmac::hmac_sha256,
        time::{OffsetDateTime, to_rfc3339},
    },
};
use polylock_integration_tests::{
    clock::{now, until},
    servers::{
        PrivateServer,
        azurite::{self, ACCOUNT, KEY, TOKEN},
    },
};

use super::{
    MIN_LEASE, Namespace, SETTLE_TIME, SLACK, acquire_and_release, acquire_soon, check_all_operations,
    describe, loss, refusal, server,
};

/// Returns a shared access signature of the account with these permissions and this expiry.
pub(crate) fn signature(permissions: &str, until: &str) -> String {
    let text = format!("{ACCOUNT}\n{permissions}\nb\nsco\n\n{until}\n\nhttps,http\n2021-06-08\n\n");
    let sig = hmac_sha256(&text, &Secret::new(KEY)).unwrap();
    let sig = sig.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    let until = until.replace(':', "%3A");
    format!("sv=2021-06-08&ss=b&srt=sco&sp={permissions}&se={until}&spr=https%2Chttp&sig={sig}")
}

const LATER: &str = "2099-12-31T00:00:00Z";

/// Checks that opening fails at once with this fault and advice.
async fn check_refused(url: &str, fault: Fault, advice: &str) {
    let (found, text, took) = refusal(url).await;
    assert!(found == Some(fault) && text.contains(advice), "{found:?}: {text}");
    assert!(took < SLACK * 2, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permissions_are_reported() {
    let namespace = Namespace::of(server());
    acquire_and_release(&namespace.locks().await, "a").await;
    let not_accepted = "does not accept the credentials: check the account and its key";
    check_refused(&format!("{}&polylock.account_key=Y2FuYXJ5", namespace.url), Fault::Denied, not_accepted)
        .await;
    let expired = signature("rwdlacup", "2020-01-01T00:00:00Z");
    let forged = signature("r", LATER).replace("sp=r", "sp=rwdlacup");
    for sas in [expired, forged] {
        check_refused(&format!("{}&{sas}", namespace.url), Fault::Denied, not_accepted).await;
    }
    // These permissions are sufficient.
    check_all_operations(&format!("{}&{}", namespace.url, signature("rwlc", LATER))).await;
    // Read permission is not.
    let reader = Locks::connect(&format!("{}&{}", namespace.url, signature("rl", LATER))).await.unwrap();
    for (name, error) in [
        ("acquire", reader.lock("a").acquire().await.map(drop)),
        ("create", reader.lock("fresh").try_acquire().await.map(drop)),
        ("break", break_held(&namespace, &reader).await),
    ] {
        let (fault, text) = describe(&error.unwrap_err());
        println!("{name}: {text}");
        assert!(
            fault == Some(Fault::Denied) && text.contains("do not allow this: the store reads, writes"),
            "{text}"
        );
    }
    // Nor is it if the container is missing.
    let missing = Namespace::with_new_container(server());
    let url = format!("{}&{}", missing.url, signature("rl", LATER));
    check_refused(&url, Fault::Denied, "creates the container if it is missing").await;
}

/// The holder is notified at its deadline, because the signature might be renewed before; a new acquisition fails at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_signature_loses_the_lock_at_the_deadline() {
    let namespace = Namespace::of(server());
    // Before the first renewal, after a third of the lease.
    let soon = OffsetDateTime::now_utc().unix_timestamp() + 5;
    let until = to_rfc3339(&OffsetDateTime::from_unix_timestamp(soon).unwrap());
    let locks = Locks::connect(&format!("{}&{}", namespace.url, signature("rwlc", &until))).await.unwrap();
    let guard = locks.lock("a").ttl(MIN_LEASE).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("a").ttl(MIN_LEASE).outage(Duration::from_secs(1)).acquire());
    let (fault, text) = describe(&waiting.await.unwrap().unwrap_err());
    assert!(fault == Some(Fault::Revoked) && text.contains("whether the signature has expired"), "{text}");
    let deadline = guard.deadline();
    assert_eq!(loss(&guard).await, LostReason::DeadlineReached);
    assert!(now() >= deadline && now() < deadline + SLACK);
    namespace.locks().await.lock("a").wait(SETTLE_TIME).acquire().await.unwrap().release().await.unwrap();
}

/// Breaks a lock that another store holds.
async fn break_held(namespace: &Namespace, locks: &Locks) -> Result<(), Error> {
    let guard = namespace.locks().await.lock("held").acquire().await.unwrap();
    let error = locks.break_lock("held").await.map(drop);
    guard.release().await.unwrap();
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_account_is_reported() {
    let namespace = Namespace::of(server());
    let other = namespace.url.replace(ACCOUNT, "nobody");
    let (fault, text, took) = refusal(&format!("{other}&polylock.account_key={}", encoded(KEY))).await;
    assert!(fault == Some(Fault::Denied) && text.contains("no such account"), "{text}");
    assert!(took < SLACK * 2, "{took:?}");
    // In the public cloud, the name of a missing account does not resolve.
    let url = format!(
        "az://locks@nobody/a?polylock.endpoint=http://nobody.invalid/&polylock.account_key={}\
         &polylock.connect_timeout=600ms",
        encoded(KEY)
    );
    let (fault, text, took) = refusal(&url).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("check the account's name"), "{text}");
    assert!(took < SLACK * 3, "{took:?}");
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_container_is_reported_unless_it_may_be_created() {
    let namespace = Namespace::with_new_container(server());
    let url = format!("{}&polylock.create_container=false", namespace.url);
    let advice = "there is no such container: create it, or check its name";
    check_refused(&url, Fault::Permanent, advice).await;
    check_all_operations(&namespace.url).await;
    let locks = Locks::connect(&url).await.unwrap();
    let token = acquire_and_release(&locks, "a").await;
    // An administrator deletes it while a lock is held.
    let guard = locks.lock("held").ttl(MIN_LEASE).acquire().await.unwrap();
    namespace.expect_reply(&format!("DELETE {}?restype=container", namespace.container()), " 202 ").await;
    let (fault, text) = describe(&locks.lock("a").acquire().await.unwrap_err());
    assert!(fault == Some(Fault::Permanent) && text.contains(advice), "{text}");
    assert!(locks.inspect("a").await.unwrap().holders.is_empty());
    assert!(locks.list("").await.unwrap().is_empty());
    assert_eq!(loss(&guard).await, LostReason::Gone);
    namespace.next_second().await;
    // A store that may create it does so.
    assert!(acquire_and_release(&namespace.locks().await, "a").await > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_are_notified_of_administrative_changes() {
    let namespace = Namespace::of(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let hold = async |name: &'static str| here.lock(name).ttl(MIN_LEASE).acquire().await.unwrap();
    let (deleted, broken, by_store) = (hold("deleted").await, hold("broken").await, hold("by-store").await);
    let began = now();
    namespace.delete("deleted").await;
    namespace.break_lease("broken").await;
    let entries = there.break_lock("by-store").force().await.unwrap();
    assert_eq!(entries.len(), 1);
    // The next client acquires the lock at once, with a greater token.
    for guard in [&broken, &by_store] {
        assert!(acquire_and_release(&there, guard.name().as_str()).await > guard.fencing_token().get());
    }
    namespace.next_second().await;
    let next = there.lock("deleted").ttl(MIN_LEASE).acquire().await.unwrap();
    assert!(next.fencing_token() > deleted.fencing_token());
    let lost = tokio::join!(loss(&deleted), loss(&broken), loss(&by_store));
    println!("after {:.1?}: {lost:?}", now().since(began));
    assert_eq!((&lost.0, &lost.1), (&LostReason::Gone, &LostReason::Gone));
    assert!(matches!(lost.2, LostReason::Broken(_)), "{lost:?}");
    assert!(now().since(began) < MIN_LEASE * 2 / 3, "at the next renewal");
    assert!(next.renewed().await.is_some(), "the former holder does not disturb the next one");
    next.release().await.unwrap();
    for guard in [deleted, broken, by_store] {
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_lease_is_reported_as_broken_unless_acquired_since() {
    let namespace = Namespace::of(server());
    let guard = namespace.locks().await.lock("a").ttl(MIN_LEASE).acquire().await.unwrap();
    namespace.break_lease("a").await;
    let waiting = tokio::spawn(namespace.locks().await.lock("a").acquire());
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let other = namespace.locks().await.lock("b").ttl(MIN_LEASE).acquire().await.unwrap();
    namespace.break_lease("b").await;
    assert_eq!(loss(&other).await, LostReason::Broken(polylock_core::BreakNotice::default()));
    assert_eq!(loss(&guard).await, LostReason::Gone);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_blob_is_refused_and_not_changed() {
    let namespace = Namespace::of(server());
    let locks = namespace.locks().await;
    let others =
        ["x-ms-meta-owner: me", "x-ms-meta-polylock: 2", "x-ms-meta-polylock: 1\nx-ms-meta-polylockfence: 9"];
    for (number, metadata) in others.iter().enumerate() {
        let name = format!("it{number}");
        let put = format!("PUT {}/{name}\nx-ms-blob-type: BlockBlob\n{metadata}\n\nprecious", namespace.path);
        namespace.expect_reply(&put, " 201 ").await;
        let content = async || {
            let answer = namespace.send(&format!("GET {}/{name}", namespace.path)).await;
            let keep = |line: &&str| {
                let line = line.to_lowercase();
                ["etag: ", "last-modified: ", "x-ms-meta-", "content-length: ", "precious"]
                    .iter()
                    .any(|part| line.starts_with(part))
            };
            answer.lines().filter(keep).map(str::to_owned).collect::<Vec<_>>()
        };
        let before = content().await;
        assert!(before.len() >= 5, "{before:?}");
        let began = now();
        let (fault, text) = describe(&locks.lock(&name).acquire().await.unwrap_err());
        assert!(fault == Some(Fault::Permanent), "{text}");
        assert!(text.contains("was not made by polylock") && text.contains("choose another path"), "{text}");
        until("its lease is released", async || namespace.lease_state(&name).await == "available").await;
        assert!(now().since(began) < SLACK * 2);
        assert_eq!(content().await, before);
    }
    // It is not listed as a lock.
    assert!(locks.list("").await.unwrap().is_empty());
}

/// A credential with this token, or without one.
#[derive(Debug)]
struct TestCredential(Option<&'static str>);

#[async_trait]
impl TokenCredential for TestCredential {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        assert!(scopes.iter().all(|scope| scope.contains("storage.azure.com")), "{scopes:?}");
        let token =
            self.0.ok_or_else(|| azure_core::Error::with_message(ErrorKind::Credential, "not logged in"))?;
        let until = OffsetDateTime::from_unix_timestamp(4_000_000_000).unwrap();
        Ok(AccessToken::new(token.to_owned(), until))
    }
}

fn config(server: &PrivateServer, url: &str) -> Config {
    Config::new(url).unwrap().tls_ca(server.directory().join("ca.crt"))
}

/// Opens the store; returns the fault and the text of the error if that fails.
pub(crate) async fn opened(config: Config) -> Result<Locks, (Option<Fault>, String)> {
    let began = now();
    let opened = polylock_azure::connect(config).await;
    assert!(now().since(began) < SETTLE_TIME);
    opened.map(Locks::new).map_err(|error| {
        println!("{error}");
        describe(&error)
    })
}

pub(crate) fn with_token(server: &PrivateServer, token: Option<&'static str>) -> Config {
    config(server, server.url()).credential(Arc::new(TestCredential(token)))
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_require_tls_with_a_trusted_certificate() {
    let (server, other) = (azurite::start_tls(&[]).unwrap(), azurite::start_tls(&[]).unwrap());
    let ca = |of: &PrivateServer| of.directory().join("ca.crt").display().to_string();
    check_all_operations(&format!("{}&polylock.tls_ca={}", server.url(), ca(&server))).await;
    let by_name = server.url().replace("127.0.0.1", "localhost");
    check_all_operations(&format!("{by_name}&polylock.tls_ca={}", ca(&server))).await;

    let locks = opened(with_token(&server, Some(TOKEN))).await.unwrap();
    let guard = locks.lock("token").acquire().await.unwrap();
    assert!(locks.lock("token").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    acquire_soon(&locks, "token").await;
    for (token, advice) in
        [(Some("none"), "the credentials"), (None, "no access token: check the credential")]
    {
        let (fault, text) = opened(with_token(&server, token)).await.unwrap_err();
        assert!(fault == Some(Fault::Denied) && text.contains(advice), "{text}");
    }
    // Never without encryption.
    let plain = Config::new(super::server().url()).unwrap().credential(Arc::new(TestCredential(Some(TOKEN))));
    let (fault, text) = opened(plain).await.unwrap_err();
    assert!(fault.is_none() && text.contains("https"), "{text}");

    // Without an authority, and with that of another server.
    for url in [server.url().to_owned(), format!("{}&polylock.tls_ca={}", server.url(), ca(&other))] {
        check_refused(&url, Fault::Permanent, "polylock.tls_ca").await;
    }
    // Without TLS to a TLS port and the reverse: the cause is not known.
    let plain = server.url().replace("https:", "http:");
    let encrypted = super::server().url().replace("http:", "https:");
    for url in [plain, encrypted] {
        let (fault, text, took) = refusal(&format!("{url}&polylock.connect_timeout=600ms")).await;
        assert!(fault.is_some() && took < SLACK * 3, "{took:?}: {text}");
    }
    let url = format!("{}&polylock.tls_ca=/nowhere/ca.crt", server.url());
    let (fault, text, _) = refusal(&url).await;
    assert!(
        fault.is_none() && text.contains("polylock.tls_ca") && text.contains("/nowhere/ca.crt"),
        "{text}"
    );
}

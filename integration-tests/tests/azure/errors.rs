//! What is refused, and what administrators do: each is told, with what to do about it.

use std::sync::Arc;

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
        Private,
        azurite::{self, ACCOUNT, KEY, TOKEN},
    },
};

use crate::{
    SETTLED, SHORTEST, SLACK, Spot, becomes_free, everything_works, is_free, loss, refusal, server, told,
};

/// A signature for the account: what may be done, and until when.
pub(crate) fn signature(may: &str, until: &str) -> String {
    let text = format!("{ACCOUNT}\n{may}\nb\nsco\n\n{until}\n\nhttps,http\n2021-06-08\n\n");
    let sig = hmac_sha256(&text, &Secret::new(KEY)).unwrap();
    let sig = sig.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    let until = until.replace(':', "%3A");
    format!("sv=2021-06-08&ss=b&srt=sco&sp={may}&se={until}&spr=https%2Chttp&sig={sig}")
}

const LATER: &str = "2099-12-31T00:00:00Z";

/// It is refused for good, at once, with this advice.
async fn denied(url: &str, fault: Fault, advice: &str) {
    let (told, text, took) = refusal(url).await;
    assert!(told == Some(fault) && text.contains(advice), "{told:?}: {text}");
    assert!(took < SLACK * 2, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_is_told() {
    let spot = Spot::of(server());
    is_free(&spot.locks().await, "a").await;
    let not_accepted = "does not accept the credentials: check the account and its key";
    denied(&format!("{}&polylock.account_key=Y2FuYXJ5", spot.url), Fault::Denied, not_accepted).await;
    let expired = signature("rwdlacup", "2020-01-01T00:00:00Z");
    let forged = signature("r", LATER).replace("sp=r", "sp=rwdlacup");
    for sas in [expired, forged] {
        denied(&format!("{}&{sas}", spot.url), Fault::Denied, not_accepted).await;
    }
    // What is allowed is enough.
    everything_works(&format!("{}&{}", spot.url, signature("rwlc", LATER))).await;
    // To read is not.
    let reader = Locks::connect(&format!("{}&{}", spot.url, signature("rl", LATER))).await.unwrap();
    for (name, error) in [
        ("taking", reader.lock("a").acquire().await.map(drop)),
        ("making", reader.lock("fresh").try_acquire().await.map(drop)),
        ("breaking", broken(&spot, &reader).await),
    ] {
        let (fault, text) = told(&error.unwrap_err());
        println!("{name}: {text}");
        assert!(
            fault == Some(Fault::Denied) && text.contains("do not allow this: the store reads, writes"),
            "{text}"
        );
    }
    // Nor to use what is there, where the container is not.
    let nowhere = Spot::alone(server());
    let url = format!("{}&{}", nowhere.url, signature("rl", LATER));
    denied(&url, Fault::Denied, "creates the container if it is missing").await;
}

/// It may be renewed until then, so a holder is not told before its deadline; who asks for a lock is told at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_signature_that_runs_out_costs_the_lock_at_the_deadline() {
    let spot = Spot::of(server());
    let soon = OffsetDateTime::now_utc().unix_timestamp() + 4;
    let until = to_rfc3339(&OffsetDateTime::from_unix_timestamp(soon).unwrap());
    let locks = Locks::connect(&format!("{}&{}", spot.url, signature("rwlc", &until))).await.unwrap();
    let guard = locks.lock("a").ttl(SHORTEST).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("a").ttl(SHORTEST).acquire());
    let (fault, text) = told(&waiting.await.unwrap().unwrap_err());
    assert!(fault == Some(Fault::Denied) && text.contains("whether the signature has run out"), "{text}");
    let deadline = guard.deadline();
    assert_eq!(loss(&guard).await, LostReason::DeadlineReached);
    assert!(now() >= deadline && now() < deadline + SLACK);
    spot.locks().await.lock("a").wait(SETTLED).acquire().await.unwrap().release().await.unwrap();
}

/// Breaking a lock that is held.
async fn broken(spot: &Spot, locks: &Locks) -> Result<(), Error> {
    let guard = spot.locks().await.lock("held").acquire().await.unwrap();
    let error = locks.break_lock("held").await.map(drop);
    guard.release().await.unwrap();
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_is_not_there_is_told() {
    let spot = Spot::of(server());
    let other = spot.url.replace(ACCOUNT, "nobody");
    let (fault, text, took) = refusal(&format!("{other}&polylock.account_key={}", encoded(KEY))).await;
    assert!(fault == Some(Fault::Denied) && text.contains("no such account"), "{text}");
    assert!(took < SLACK * 2, "{took:?}");
    // In the public cloud it is a name that nobody has.
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
async fn a_container_that_is_not_to_be_made_is_told() {
    let spot = Spot::alone(server());
    let url = format!("{}&polylock.create_container=false", spot.url);
    let advice = "there is no such container: create it, or check its name";
    denied(&url, Fault::Permanent, advice).await;
    everything_works(&spot.url).await;
    let locks = Locks::connect(&url).await.unwrap();
    let token = is_free(&locks, "a").await;
    // Somebody deletes it later, under a holder.
    let guard = locks.lock("held").ttl(SHORTEST).acquire().await.unwrap();
    spot.does(&format!("DELETE {}?restype=container", spot.container()), " 202 ").await;
    let (fault, text) = told(&locks.lock("a").acquire().await.unwrap_err());
    assert!(fault == Some(Fault::Permanent) && text.contains(advice), "{text}");
    assert!(locks.inspect("a").await.unwrap().holders.is_empty());
    assert!(locks.list("").await.unwrap().is_empty());
    assert_eq!(loss(&guard).await, LostReason::Gone);
    spot.next_second().await;
    // Who may make it does.
    assert!(is_free(&spot.locks().await, "a").await > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_is_told_what_an_administrator_has_done() {
    let spot = Spot::of(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    let hold = async |name: &'static str| here.lock(name).ttl(SHORTEST).acquire().await.unwrap();
    let (deleted, broken, by_us) = (hold("deleted").await, hold("broken").await, hold("by-us").await);
    let began = now();
    spot.deletes("deleted").await;
    spot.breaks("broken").await;
    let out = there.break_lock("by-us").force().await.unwrap();
    assert_eq!(out.len(), 1);
    // Whoever comes next has it at once, and a greater token.
    for guard in [&broken, &by_us] {
        assert!(is_free(&there, guard.name().as_str()).await > guard.fencing_token().get());
    }
    spot.next_second().await;
    let next = there.lock("deleted").ttl(SHORTEST).acquire().await.unwrap();
    assert!(next.fencing_token() > deleted.fencing_token());
    let lost = tokio::join!(loss(&deleted), loss(&broken), loss(&by_us));
    println!("after {:.1?}: {lost:?}", now().since(began));
    assert_eq!((&lost.0, &lost.1), (&LostReason::Gone, &LostReason::Gone));
    assert!(matches!(lost.2, LostReason::Broken(_)), "{lost:?}");
    assert!(now().since(began) < SHORTEST / 3 + SLACK * 2, "at the next renewal");
    assert!(next.renewed().await.is_some(), "what the first one does harms nobody");
    next.release().await.unwrap();
    for guard in [deleted, broken, by_us] {
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_broken_and_not_taken_since_is_told_apart() {
    let spot = Spot::of(server());
    let guard = spot.locks().await.lock("a").ttl(SHORTEST).acquire().await.unwrap();
    spot.breaks("a").await;
    let waiting = tokio::spawn(spot.locks().await.lock("a").acquire());
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let other = spot.locks().await.lock("b").ttl(SHORTEST).acquire().await.unwrap();
    spot.breaks("b").await;
    assert_eq!(loss(&other).await, LostReason::Broken(polylock_core::BreakNotice::default()));
    assert_eq!(loss(&guard).await, LostReason::Gone);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_is_something_else_is_refused_and_left_as_it_is() {
    let spot = Spot::of(server());
    let locks = spot.locks().await;
    let others =
        ["x-ms-meta-owner: me", "x-ms-meta-polylock: 2", "x-ms-meta-polylock: 1\nx-ms-meta-polylockfence: 9"];
    for (number, metadata) in others.iter().enumerate() {
        let name = format!("it{number}");
        let put = format!("PUT {}/{name}\nx-ms-blob-type: BlockBlob\n{metadata}\n\nprecious", spot.path);
        spot.does(&put, " 201 ").await;
        let whole = async || {
            let answer = spot.ask(&format!("GET {}/{name}", spot.path)).await;
            let keep = |line: &&str| {
                let line = line.to_lowercase();
                ["etag: ", "last-modified: ", "x-ms-meta-", "content-length: ", "precious"]
                    .iter()
                    .any(|part| line.starts_with(part))
            };
            answer.lines().filter(keep).map(str::to_owned).collect::<Vec<_>>()
        };
        let before = whole().await;
        assert!(before.len() >= 5, "{before:?}");
        let began = now();
        let (fault, text) = told(&locks.lock(&name).acquire().await.unwrap_err());
        assert!(fault == Some(Fault::Permanent), "{text}");
        assert!(text.contains("was not made by polylock") && text.contains("choose another path"), "{text}");
        until("its lease is released", async || spot.lease(&name).await == "available").await;
        assert!(now().since(began) < SLACK * 2);
        assert_eq!(whole().await, before);
    }
    // It holds no lock up, and is none.
    assert!(locks.list("").await.unwrap().is_empty());
}

/// Shows this token, or has none.
#[derive(Debug)]
struct Shows(Option<&'static str>);

#[async_trait]
impl TokenCredential for Shows {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        assert!(scopes.iter().all(|scope| scope.contains("storage.azure.com")), "{scopes:?}");
        let token = self
            .0
            .ok_or_else(|| azure_core::Error::with_message(ErrorKind::Credential, "nobody has logged in"))?;
        let until = OffsetDateTime::from_unix_timestamp(4_000_000_000).unwrap();
        Ok(AccessToken::new(token.to_owned(), until))
    }
}

fn config(server: &Private, url: &str) -> Config {
    Config::new(url).unwrap().tls_ca(server.directory().join("ca.crt"))
}

/// Whether it opens, and if not, what is told.
pub(crate) async fn opened(config: Config) -> Result<Locks, (Option<Fault>, String)> {
    let began = now();
    let opened = polylock_azure::connect(config).await;
    assert!(now().since(began) < SETTLED);
    opened.map(Locks::new).map_err(|error| {
        println!("{error}");
        told(&error)
    })
}

pub(crate) fn with_token(server: &Private, token: Option<&'static str>) -> Config {
    config(server, server.url()).credential(Arc::new(Shows(token)))
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_with_tokens_and_only_where_the_server_is_trusted() {
    let (server, other) = (azurite::start_tls(&[]).unwrap(), azurite::start_tls(&[]).unwrap());
    let ca = |of: &Private| of.directory().join("ca.crt").display().to_string();
    everything_works(&format!("{}&polylock.tls_ca={}", server.url(), ca(&server))).await;
    let by_name = server.url().replace("127.0.0.1", "localhost");
    everything_works(&format!("{by_name}&polylock.tls_ca={}", ca(&server))).await;

    let locks = opened(with_token(&server, Some(TOKEN))).await.unwrap();
    let guard = locks.lock("token").acquire().await.unwrap();
    assert!(locks.lock("token").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    becomes_free(&locks, "token").await;
    for (token, advice) in
        [(Some("none"), "the credentials"), (None, "no token could be had: look at the credential")]
    {
        let (fault, text) = opened(with_token(&server, token)).await.unwrap_err();
        assert!(fault == Some(Fault::Denied) && text.contains(advice), "{text}");
    }
    // Never without encryption.
    let plain = Config::new(crate::server().url()).unwrap().credential(Arc::new(Shows(Some(TOKEN))));
    let (fault, text) = opened(plain).await.unwrap_err();
    assert!(fault.is_none() && text.contains("https"), "{text}");

    // Without an authority, and with another's.
    for url in [server.url().to_owned(), format!("{}&polylock.tls_ca={}", server.url(), ca(&other))] {
        denied(&url, Fault::Permanent, "polylock.tls_ca").await;
    }
    // Each with the other's way of speaking, of which nothing more can be known.
    let plain = server.url().replace("https:", "http:");
    let encrypted = crate::server().url().replace("http:", "https:");
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

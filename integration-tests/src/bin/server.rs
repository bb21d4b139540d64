//! `server postgres`, or `mariadb`, `redis`, `valkey`, `zookeeper`, `azurite`: a server to try things with, which is gone
//! when the input ends.
//! `server redlock`: five nodes; `zookeeper-ensemble`: three members; `zookeeper-tls`, `zookeeper-sasl`, `azurite-tls`. What
//! follows are settings, such as `server redis 'appendonly yes'`.
//! `server shared postgres`: the one that a test process would use.

use std::io;

use polylock_integration_tests::servers::{self, Server, azurite, redlock, zookeeper};
use polylock_testkit::Missing;

fn main() -> Result<(), Missing> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let private = match words[..] {
        ["shared", "postgres"] => return say(servers::postgres()?.url()),
        ["shared", "mariadb"] => return say(servers::mariadb()?.url()),
        ["shared", "redis"] => return say(servers::redis()?.url()),
        ["shared", "valkey"] => return say(servers::valkey()?.url()),
        ["shared", "zookeeper"] => return say(zookeeper()?.url()),
        ["shared", "zookeeper-ensemble"] => return say(servers::zookeeper_ensemble()?.url()),
        ["shared", "azurite"] => return say(azurite()?.url()),
        ["shared", "redlock"] => return say(&redlock::url(redlock()?.iter().map(Server::url))),
        ["redlock", ref settings @ ..] => {
            let nodes = redlock::start(5, settings)?;
            return say(&redlock::url(nodes.iter().map(|node| node.url())));
        }
        ["zookeeper-ensemble", ref settings @ ..] => return say(zookeeper::ensemble(3, settings)?.url()),
        ["postgres", ref settings @ ..] => servers::postgres::start(settings)?,
        ["mariadb", ref settings @ ..] => servers::mariadb::start(settings)?,
        ["redis", ref settings @ ..] => servers::redis::start(settings)?,
        ["valkey", ref settings @ ..] => servers::valkey::start(settings)?,
        ["zookeeper", ref settings @ ..] => zookeeper::start(settings)?,
        ["zookeeper-tls", ref settings @ ..] => zookeeper::start_tls(settings)?,
        ["zookeeper-sasl", ref settings @ ..] => zookeeper::start_sasl(settings)?,
        ["azurite", ref settings @ ..] => azurite::start(settings)?,
        ["azurite-tls", ref settings @ ..] => azurite::start_tls(settings)?,
        _ => return Err(Missing(format!("{words:?} is no server"))),
    };
    println!("process {}", private.id().unwrap_or_default());
    println!("directory {}", private.directory().display());
    say(private.url())
}

/// Says the URL, and waits for the end of the input.
fn say(url: &str) -> Result<(), Missing> {
    println!("url {url}");
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop).map_err(|error| Missing(error.to_string()))
}

//! `server postgres`, or `mariadb`, `redis`, `valkey`, `zookeeper`, `azurite`: starts a server for manual tests, which ends
//! with the input.
//! `server redlock`: five nodes; `redis-cluster`: three primaries with a replica each; `redis-sentinel`: a primary, a replica and three
//! Sentinels; `zookeeper-ensemble`: three members; `zookeeper-tls`, `zookeeper-sasl`, `azurite-tls`. Further
//! arguments are settings, such as `server redis 'appendonly yes'`.
//! `server shared postgres`: starts or names the server that a test process would use.
//! `server around COMMAND …`: starts every shared server once, and runs a command with test processes that use them.

use std::{
    io,
    process::{Command, ExitCode},
    thread,
};

use polylock_integration_tests::servers::{self, Server, azurite, redlock, zookeeper};
use polylock_testkit::Missing;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["around", program, ref arguments @ ..] => around(Command::new(program).args(arguments)),
        _ => serve(&words).map(|()| ExitCode::SUCCESS),
    };
    ended.unwrap_or_else(|Missing(why)| {
        eprintln!("{why}");
        ExitCode::FAILURE
    })
}

/// Runs `command` with the URLs of all shared servers in its environment. One that is missing is left to the tests to report; one
/// that the environment names already is not started.
fn around(command: &mut Command) -> Result<ExitCode, Missing> {
    type Start = fn() -> Result<String, Missing>;
    let all: [(&str, Start); 10] = [
        ("POLYLOCK_TEST_POSTGRES_URL", || Ok(servers::postgres()?.url().to_owned())),
        ("POLYLOCK_TEST_MYSQL_URL", || Ok(servers::mariadb()?.url().to_owned())),
        ("POLYLOCK_TEST_REDIS_URL", || Ok(servers::redis()?.url().to_owned())),
        ("POLYLOCK_TEST_VALKEY_URL", || Ok(servers::valkey()?.url().to_owned())),
        ("POLYLOCK_TEST_ZOOKEEPER_URL", || Ok(zookeeper()?.url().to_owned())),
        ("POLYLOCK_TEST_ZOOKEEPER_ENSEMBLE_URL", || Ok(servers::zookeeper_ensemble()?.url().to_owned())),
        ("POLYLOCK_TEST_AZURE_URL", || Ok(azurite()?.url().to_owned())),
        ("POLYLOCK_TEST_REDIS_CLUSTER_URL", || Ok(servers::redis_cluster()?.url().to_owned())),
        ("POLYLOCK_TEST_REDIS_SENTINEL_URL", || Ok(servers::redis_sentinel()?.url().to_owned())),
        ("POLYLOCK_TEST_REDLOCK_URL", || Ok(redlock::url(redlock()?.iter().map(Server::url)))),
    ];
    let starting = all.map(|(variable, url)| (variable, thread::spawn(url)));
    for (variable, url) in starting {
        match url.join() {
            Ok(Ok(url)) => drop(command.env(variable, url)),
            Ok(Err(Missing(why))) => eprintln!("missing: {why}"),
            Err(_) => return Err(Missing(format!("the server of {variable} does not start"))),
        }
    }
    let status = command.status().map_err(|error| Missing(format!("{command:?}: {error}")))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn serve(words: &[&str]) -> Result<(), Missing> {
    let private = match words[..] {
        ["shared", "postgres"] => return print_url(servers::postgres()?.url()),
        ["shared", "mariadb"] => return print_url(servers::mariadb()?.url()),
        ["shared", "redis"] => return print_url(servers::redis()?.url()),
        ["shared", "valkey"] => return print_url(servers::valkey()?.url()),
        ["shared", "zookeeper"] => return print_url(zookeeper()?.url()),
        ["shared", "zookeeper-ensemble"] => return print_url(servers::zookeeper_ensemble()?.url()),
        ["shared", "azurite"] => return print_url(azurite()?.url()),
        ["shared", "redlock"] => return print_url(&redlock::url(redlock()?.iter().map(Server::url))),
        ["shared", "redis-cluster"] => return print_url(servers::redis_cluster()?.url()),
        ["shared", "redis-sentinel"] => return print_url(servers::redis_sentinel()?.url()),
        ["redis-cluster", ref settings @ ..] => {
            return print_url(servers::redis_cluster::start(settings)?.url());
        }
        ["redis-sentinel", ref settings @ ..] => {
            return print_url(servers::redis_sentinel::start(settings, &[])?.url());
        }
        ["redlock", ref settings @ ..] => {
            let nodes = redlock::start(5, settings)?;
            return print_url(&redlock::url(nodes.iter().map(|node| node.url())));
        }
        ["zookeeper-ensemble", ref settings @ ..] => {
            return print_url(zookeeper::ensemble(3, settings)?.url());
        }
        ["postgres", ref settings @ ..] => servers::postgres::start(settings)?,
        ["mariadb", ref settings @ ..] => servers::mariadb::start(settings)?,
        ["redis", ref settings @ ..] => servers::redis::start(settings)?,
        ["valkey", ref settings @ ..] => servers::valkey::start(settings)?,
        ["zookeeper", ref settings @ ..] => zookeeper::start(settings)?,
        ["zookeeper-tls", ref settings @ ..] => zookeeper::start_tls(settings)?,
        ["zookeeper-sasl", ref settings @ ..] => zookeeper::start_sasl(settings)?,
        ["azurite", ref settings @ ..] => azurite::start(settings)?,
        ["azurite-tls", ref settings @ ..] => azurite::start_tls(settings)?,
        _ => return Err(Missing(format!("unknown server {words:?}"))),
    };
    println!("process {}", private.id().unwrap_or_default());
    println!("directory {}", private.directory().display());
    print_url(private.url())
}

/// Prints the URL, and waits for the end of the input.
fn print_url(url: &str) -> Result<(), Missing> {
    println!("url {url}");
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop).map_err(|error| Missing(error.to_string()))
}

//! `server postgres` or `server mariadb`: a server to try things with, which is gone when the input ends.
//! `server shared postgres`: the one that a test process would use.

use std::io;

use polylock_integration_tests::servers;
use polylock_testkit::Missing;

fn main() -> Result<(), Missing> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let private = match words[..] {
        ["shared", "postgres"] => return say(servers::postgres()?.url()),
        ["shared", "mariadb"] => return say(servers::mariadb()?.url()),
        ["postgres"] => servers::postgres::start(&[])?,
        ["mariadb"] => servers::mariadb::start(&[])?,
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

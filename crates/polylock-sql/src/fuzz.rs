//! Fuzz targets: URLs.

use polylock_core::url::{self, checks};

use crate::{mysql, postgres, sqlite};

polylock_fuzz::fuzz_targets!(tests: urls);

fn urls(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    drop(url::read(&text, sqlite::Config::from_url));
    drop((postgres::Config::new(&text), mysql::Config::new(&text)));
    checks::hides_password(postgres::Config::new, &text, |password| {
        format!("postgres://u:{password}@h1:1/d")
    });
    checks::hides_password(mysql::Config::new, &text, |password| format!("mysql://u:{password}@h1:1/d"));
}

//! Fuzz targets: the config file, and the references to stores in the environment of a nested run.

use std::path::Path;

use polylock::StoreUrl;

use super::{
    nested::{OuterStore, config_reference, outer_store, without_secrets},
    parse_config, store_of,
};

polylock_fuzz::fuzz_targets!(tests: config_file, references);

/// Returns the text of an error, if there is one.
fn read(text: &str) -> Option<String> {
    let config = match parse_config(text, Path::new("config.toml")) {
        Ok(config) => config,
        Err(failure) => return Some(failure.message),
    };
    let profile = config.profiles().next();
    let settings = config.settings(profile).ok()?;
    // Other files and the environment are not read.
    let has_url = |store: &String| !["file:", "env:"].iter().any(|scheme| store.starts_with(scheme));
    settings.store.as_ref().filter(|store| has_url(store))?;
    store_of(settings, Some(Path::new("/config.toml")), profile).err().map(|failure| failure.message)
}

fn config_file(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    read(&text);
    let line = text.lines().count() / 2;
    let before: String = text.split_inclusive('\n').take(line).collect();
    let after = &text[before.len()..];
    let problem = read(&format!("{before}\nstore = 'redis://u:canary@h'\n{after}")).unwrap_or_default();
    assert!(!problem.contains("canary"), "{problem}");
}

fn references(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(Some(OuterStore::InConfig { file, profile })) = outer_store(Some(text.clone().into_owned()))
        && file.is_absolute()
    {
        let again = config_reference(&file, profile.as_deref()).unwrap();
        let Ok(Some(OuterStore::InConfig { file: same, profile: same_profile })) = outer_store(Some(again))
        else {
            panic!("{text} names no config file");
        };
        assert_eq!((same, same_profile), (std::path::absolute(&file).unwrap(), profile));
    }
    if let Ok(url) = StoreUrl::parse(&text)
        && let Some(reference) = without_secrets(&url, None)
    {
        assert_eq!(StoreUrl::parse(&reference).unwrap(), url, "{reference}");
    }
}

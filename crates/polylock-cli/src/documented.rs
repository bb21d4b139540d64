//! The pages and the program say the same: commands, options, exit codes, variables and the keys of URLs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use clap::{Arg, Command, CommandFactory};

use crate::{args::Cli, help};

const README: &str = include_str!("../README.md");
const EXIT: &str = include_str!("exit.rs");

/// The options that clap adds, and what is told apart by its place.
const GENERATED: [&str; 2] = ["help", "version"];

fn cli() -> Command {
    let mut cli = Cli::command();
    cli.build();
    cli
}

/// The commands, with the arguments of each.
fn commands() -> Vec<Command> {
    let cli = cli();
    cli.get_subcommands()
        .filter(|command| command.get_name() != "help")
        .cloned()
        .chain([cli.clone()])
        .collect()
}

/// All spellings of an option.
fn spellings(option: &Arg) -> Vec<String> {
    let long = option.get_long_and_visible_aliases().unwrap_or_default();
    let short = option.get_short().map(|short| format!("-{short}"));
    long.into_iter().map(|long| format!("--{long}")).chain(short).collect()
}

/// The words of a text that begin with `start`, as far as they are made of letters, digits and these.
fn words<'a>(text: &'a str, start: &'a str, others: &'a str) -> BTreeSet<&'a str> {
    let is_part = move |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    let separate = |at: usize| !text[..at].chars().next_back().is_some_and(is_part);
    text.match_indices(start)
        .filter(|(at, _)| separate(*at))
        .map(|(at, _)| {
            let rest = &text[at..];
            let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            rest[..end].trim_end_matches(['.', '-', '_'])
        })
        .filter(|word| word.len() > start.len())
        .collect()
}

/// The sources of the tests that run the program.
fn tests() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for (directory, prefix) in [("tests", ""), ("../../integration-tests/tests", "cli_")] {
        for entry in fs::read_dir(here.join(directory)).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with(".rs") && name.starts_with(prefix) {
                text += &fs::read_to_string(entry.path()).unwrap();
            }
        }
    }
    text
}

/// The texts that people read.
fn pages() -> String {
    let long = commands().into_iter().map(|mut command| command.render_long_help().to_string());
    long.collect::<Vec<_>>().join("\n") + README
}

#[test]
fn every_command_and_option_is_run_by_a_test() {
    let tests = tests();
    let is_run = |word: &str| {
        let ends = |at: usize| tests[at + word.len()..].starts_with(['"', ' ', '=', '\'', '\\', '{']);
        let begins = |at: usize| tests[..at].ends_with(['"', ' ', '(', '[']);
        tests.match_indices(word).any(|(at, _)| begins(at) && ends(at))
    };
    let mut missing = Vec::new();
    for command in commands() {
        let name = command.get_name();
        if name != "polylock" && !is_run(name) {
            missing.push(name.to_owned());
        }
        for option in command.get_arguments().filter(|option| !option.is_positional()) {
            let spellings = spellings(option);
            if !GENERATED.contains(&option.get_id().as_str()) && !spellings.iter().any(|word| is_run(word)) {
                missing.push(format!("{name} {}", spellings.join(" ")));
            }
        }
    }
    assert_eq!(missing, [""; 0]);
}

#[test]
fn every_option_on_a_page_exists() {
    let known: BTreeSet<String> = commands()
        .iter()
        .flat_map(|command| command.get_arguments().flat_map(spellings).collect::<Vec<_>>())
        .collect();
    let pages = pages();
    let unknown: Vec<_> =
        words(&pages, "--", "-").into_iter().filter(|word| !known.contains(*word)).collect();
    assert_eq!(unknown, [""; 0]);
}

/// The codes of the table below `title`, whose lines begin with them.
fn codes(text: &str, title: &str, mark: &str) -> BTreeSet<u8> {
    let table = text.split_once(title).unwrap().1;
    let lines = table.lines().skip(1).skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    let first = lines.map(|line| line.trim_start_matches(mark).trim().split(mark).next().unwrap().to_owned());
    let mut found = BTreeSet::new();
    for cell in first {
        let numbers = cell.split([',', ' ']).map(|word| word.trim_end_matches('…'));
        found.extend(
            numbers.map_while(|word| if word.is_empty() { Some(0) } else { word.parse::<u8>().ok() }),
        );
    }
    found
}

/// Each code that the program may end with has a name in `exit.rs`, stands on both pages, and is asserted by a test.
#[test]
fn every_exit_code_is_documented_and_produced_by_a_test() {
    let constants =
        EXIT.lines().filter_map(|line| line.strip_prefix("pub(crate) const ")?.split_once(": u8 = "));
    let defined: BTreeMap<&str, u8> =
        constants.map(|(name, value)| (name, value.trim_end_matches(';').parse().unwrap())).collect();
    let mut all: BTreeSet<u8> =
        defined.values().copied().filter(|code| *code != crate::exit::SIGNAL).collect();
    // Not acquired with --skip-ok, SIGINT and SIGTERM.
    all.extend([0, 130, 143]);
    let in_help = codes(help::RUN, "EXIT CODE", "  ");
    let in_readme = codes(README, "| code | meaning |", "|");
    for code in &all {
        assert!(in_help.contains(code) && in_readme.contains(code), "{code}: {in_help:?} {in_readme:?}");
    }
    assert_eq!(in_help.difference(&all).collect::<Vec<_>>(), [&0u8; 0], "in the help");
    assert_eq!(in_readme.difference(&all).collect::<Vec<_>>(), [&0u8; 0], "in the README");
    let tests = tests().split_whitespace().collect::<Vec<_>>().join(" ");
    for code in all {
        let asserted = [format!("Some({code})"), format!(", {code}, \""), format!("({code}))")];
        assert!(asserted.iter().any(|text| tests.contains(text)), "no test ends with {code}");
    }
}

#[test]
fn every_variable_of_the_command_is_documented() {
    let sources = [
        include_str!("run/environment.rs"),
        include_str!("store/nested.rs"),
        include_str!("store.rs"),
        include_str!("args.rs"),
    ];
    let sources = sources.join("\n");
    let set: BTreeSet<_> =
        words(&sources, "POLYLOCK_", "_").into_iter().filter(|word| !word.contains("SURELY")).collect();
    let pages = pages();
    let on_page = words(&pages, "POLYLOCK_", "_");
    assert!(set.len() > 8 && set == on_page, "in the program: {set:?}; on the pages: {on_page:?}");
}

/// The keys that a store knows, as its refusal of another one lists them.
fn known_keys(url: &str) -> BTreeSet<String> {
    let error = polylock::schema(&format!("{url}?qqqqqqqq=1")).unwrap_err();
    let list = error.problem.split_once("known are ").unwrap_or_else(|| panic!("{error}")).1;
    list.split(", ").filter(|key| key.starts_with("polylock.")).map(ToOwned::to_owned).collect()
}

/// The page of each store has the keys that the store reads, and no others.
#[test]
fn every_key_of_a_url_is_documented() {
    let common = ["polylock.ttl", "polylock.wait", "polylock.outage"];
    let facade = include_str!("../../polylock/src/lib.rs");
    assert!(common.iter().all(|key| facade.contains(key)));
    let pages = [
        ("sqlite:l.db", include_str!("../../polylock-sql/src/sqlite/docs.md")),
        ("postgres://h/x", include_str!("../../polylock-sql/src/postgres/docs.md")),
        ("mysql://h/x", include_str!("../../polylock-sql/src/mysql/docs.md")),
        ("redis://h", include_str!("../../polylock-redis/src/single/docs.md")),
        ("redis-cluster://a,b,c", include_str!("../../polylock-redis/src/cluster/docs.md")),
        ("redis+sentinel://a,b,c/orders", include_str!("../../polylock-redis/src/sentinel/docs.md")),
        ("redlock://a,b,c", include_str!("../../polylock-redis/src/redlock/docs.md")),
        ("zookeeper://h/x", include_str!("../../polylock-zookeeper/src/docs.md")),
        ("az://locks@account/x", include_str!("../../polylock-azure/src/docs.md")),
    ];
    let mut wrong = Vec::new();
    for (url, page) in pages {
        let known = known_keys(url);
        let documented = words(page, "polylock.", "._");
        for key in
            known.iter().filter(|key| !common.contains(&key.as_str()) && !documented.contains(key.as_str()))
        {
            wrong.push(format!("{url}: {key} is not on the page"));
        }
        // A key in the table of options must be known. In the text, a page may name those of other stores.
        let table = page.lines().filter(|line| line.starts_with("| `polylock."));
        for key in table.filter_map(|line| line.trim_start_matches("| `").split('`').next()) {
            if !known.contains(key) {
                wrong.push(format!("{url}: {key} is on the page, and not known"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

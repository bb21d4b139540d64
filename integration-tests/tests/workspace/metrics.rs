//! The page, the dashboard and the alert rules of metrics match the metrics that exist.

use std::{collections::BTreeSet, fs, path::Path};

use polylock::metrics::METRICS;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)).unwrap()
}

fn existing() -> BTreeSet<&'static str> {
    METRICS.iter().map(|metric| metric.name).collect()
}

/// Returns the rows of the table of metrics: name, kind, labels, and the rest.
fn rows(page: &str) -> Vec<[String; 4]> {
    let lines = page.lines().filter(|line| line.starts_with("| `polylock_"));
    let cells = lines.map(|line| {
        let mut cells = line.trim_matches('|').splitn(4, '|').map(|cell| cell.trim().replace('`', ""));
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    });
    cells.collect()
}

/// Returns the differences between a page and the metrics.
fn differences(page: &str) -> Vec<String> {
    let rows = rows(page);
    let mut wrong = Vec::new();
    for metric in METRICS {
        let labels = metric.labels.join(", ");
        match rows.iter().find(|[name, ..]| name == metric.name) {
            None => wrong.push(format!("{} is not on the page", metric.name)),
            Some([_, kind, page_labels, reaction]) => {
                let reaction = reaction.split_once('|').map_or("", |(_, reaction)| reaction.trim());
                if kind != metric.kind || *page_labels != labels || reaction.len() < 20 {
                    wrong.push(format!("{}: {}, {labels}, and a reaction", metric.name, metric.kind));
                }
            }
        }
    }
    let unknown = rows.iter().filter(|[name, ..]| !existing().contains(name.as_str()));
    wrong.extend(unknown.map(|[name, ..]| format!("{name} does not exist")));
    wrong
}

/// Returns the names of metrics in queries, without the endings of a histogram's series.
fn queried(text: &str) -> BTreeSet<&str> {
    let starts = text.match_indices("polylock_").map(|(at, _)| &text[at..]);
    let names = starts.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..end];
        name.strip_suffix("_bucket").or_else(|| name.strip_suffix("_count")).unwrap_or(name)
    });
    names.collect()
}

#[test]
fn each_metric_is_documented_with_its_labels_and_a_reaction() {
    let page = read("docs/metrics.md");
    assert_eq!(differences(&page), [""; 0]);
    // The check finds a metric that is missing, one that does not exist, and other labels.
    for (planted, found) in [
        (page.replace("| `polylock_held`", "| `polylock_holds`"), 2),
        (page.replace("`backend`, `reason` |", "`backend` |"), 1),
        (page.replace("| gauge | `backend` | near 0 |", "| counter | `backend` | near 0 |"), 1),
    ] {
        assert_eq!(differences(&planted).len(), found, "{:?}", differences(&planted));
    }
}

#[test]
fn the_dashboard_shows_every_metric_and_the_alerts_use_existing_ones() {
    let dashboard = read("dashboards/polylock.json");
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = parsed["panels"].as_array().unwrap();
    assert!(panels.len() > 8);
    let queries: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert_eq!(queried(&queries.join(" ")), existing());
    let alerts = read("dashboards/alerts.yml");
    let rules: Vec<&str> = alerts.lines().filter(|line| line.contains("polylock_")).collect();
    assert!(rules.len() > 4 && queried(&rules.join(" ")).is_subset(&existing()), "{rules:?}");
    assert_eq!(queried("rate(polylock_nothing_bucket[5m])"), ["polylock_nothing"].into());
}

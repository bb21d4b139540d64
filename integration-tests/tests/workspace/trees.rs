//! The dependencies: core has no driver, and the facade has those of its enabled features.

use polylock_integration_tests::cargo::tree;

/// The drivers by feature, and the encryption libraries.
const DRIVERS: [(&str, &[&str]); 7] = [
    ("sqlite", &["sqlx", "sqlx-core", "sqlx-sqlite", "libsqlite3-sys", "polylock-sql"]),
    ("postgres", &["sqlx", "sqlx-core", "sqlx-postgres", "deadpool", "polylock-sql"]),
    ("mysql", &["sqlx", "sqlx-core", "sqlx-mysql", "deadpool", "polylock-sql"]),
    ("redis", &["redis", "polylock-redis"]),
    ("zookeeper", &["zookeeper-client", "polylock-zookeeper"]),
    (
        "azure",
        &["azure_storage_blob", "azure_storage_blobs", "azure_core", "reqwest", "hyper", "polylock-azure"],
    ),
    (
        "tls",
        &[
            "rustls",
            "native-tls",
            "openssl",
            "openssl-sys",
            "ring",
            "aws-lc-rs",
            "aws-lc-sys",
            "tokio-rustls",
        ],
    ),
];

/// Returns the drivers in a tree except for those of `feature`.
fn foreign(tree: &[String], feature: &str) -> Vec<String> {
    let of = |own: bool| DRIVERS.iter().filter(move |(of, _)| (*of == feature) == own);
    // Stores of one crate share some drivers.
    let own: Vec<&str> = of(true).flat_map(|(_, names)| *names).copied().collect();
    let foreign = of(false).flat_map(|(_, names)| *names).filter(|name| !own.contains(name));
    let foreign: Vec<&str> = foreign.copied().collect();
    tree.iter().filter(|name| foreign.contains(&name.as_str())).cloned().collect()
}

#[test]
fn core_has_no_driver_and_no_tls() {
    assert_eq!(foreign(&tree("polylock-core", &[]), "none"), [""; 0]);
    assert_eq!(foreign(&tree("polylock-core", &["metrics"]), "none"), [""; 0]);
}

#[test]
fn the_testkit_depends_on_no_driver() {
    assert_eq!(foreign(&tree("polylock-testkit", &[]), "none"), [""; 0]);
}

#[test]
fn the_facade_without_features_has_no_driver() {
    assert_eq!(foreign(&tree("polylock", &[]), "none"), [""; 0]);
    assert_eq!(foreign(&tree("polylock", &["serde", "metrics"]), "none"), [""; 0]);
}

#[test]
fn the_facade_with_one_feature_has_no_driver_of_another() {
    for feature in ["sqlite", "postgres", "mysql", "redis", "zookeeper", "azure"] {
        assert_eq!(foreign(&tree("polylock", &[feature]), feature), [""; 0], "{feature}");
    }
    let tree = tree("polylock", &["sqlite"]);
    // The counterexample: the same tree is an error if the feature is not enabled.
    assert!(tree.contains(&"libsqlite3-sys".to_owned()), "{tree:?}");
    for driver in ["sqlx", "libsqlite3-sys", "polylock-sql"] {
        assert!(foreign(&tree, "none").contains(&driver.to_owned()), "{driver}");
    }
}

#[test]
fn the_command_with_one_store_has_no_driver_of_another() {
    for feature in ["sqlite", "postgres", "mysql", "redis", "zookeeper"] {
        assert_eq!(foreign(&tree("polylock-cli", &[feature]), feature), [""; 0], "{feature}");
    }
    assert_eq!(foreign(&tree("polylock-cli", &["check"]), "none"), [""; 0]);
    // The counterexample: the default build.
    let tree = tree("polylock-cli", &["default"]);
    for driver in ["rustls", "redis", "sqlx-postgres"] {
        assert!(foreign(&tree, "sqlite").contains(&driver.to_owned()), "{driver}");
    }
}

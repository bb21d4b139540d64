#!/usr/bin/env bash
# Installs what the tests need and runs them all: format, lints, every feature alone, unit tests, the conformance suite
# on every store, real processes, planted bugs that the tests must catch, doctests, documentation.
#
#   scripts/test.sh            everything
#   scripts/test.sh lint       one part of it: lint, features, test, mutants or doc
#
# A store's server that can't be started is a failure, not a skip.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
export POLYLOCK_TEST_REQUIRE=${POLYLOCK_TEST_REQUIRE:-all}

say() { printf '\n== %s\n' "$*"; }

install_packages() {
    # SQLite is compiled into the program: that takes a C compiler, and nothing else.
    command -v cc >/dev/null && return
    say "installing a C compiler"
    local as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends build-essential
}

lint() {
    say "format"
    cargo fmt --all --check
    say "lints"
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
}

features() {
    # Features are additive, so each one alone must build: a missing `cfg` shows only here.
    say "each feature alone"
    for features in "" sqlite serde metrics; do
        cargo check --quiet --locked -p polylock --no-default-features --features "$features"
    done
    cargo check --quiet --locked -p polylock-core --no-default-features
    cargo check --quiet --locked -p polylock-sql --no-default-features
}

tests() {
    say "tests"
    cargo test --workspace --all-features --locked
}

mutants() {
    say "planted bugs"
    cargo run --quiet --locked -p polylock-integration-tests --bin mutants
}

doc() {
    say "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked
}

install_packages
case "${1:-all}" in
    all) lint; features; tests; mutants; doc; say "all passed" ;;
    lint | features | mutants | doc) "$1" ;;
    test) tests ;;
    *) echo "unknown part: $1 (lint, features, test, mutants, doc)" >&2; exit 64 ;;
esac

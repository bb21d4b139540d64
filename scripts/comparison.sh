#!/usr/bin/env bash
# Measures all stores and other lock libraries side by side, and writes integration-tests/record/comparison.json and docs/comparison.md:
# in less than 40 minutes on 2 cores. `scripts/test.sh servers` installs the servers.
#
#   scripts/comparison.sh                               everything
#   scripts/comparison.sh --only redis --part hand-over some stores or libraries, or some parts; the other results stay
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/test.sh servers
integration-tests/peers/run.sh --install
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cargo build --release --locked -p polylock-integration-tests --all-features --bin comparison --bin worker
# Programs that can't read the clock of all processes add this to another one.
BOOTTIME_OFFSET=$(python3 -c 'from time import *; print(clock_gettime_ns(CLOCK_BOOTTIME) - clock_gettime_ns(CLOCK_MONOTONIC))')
export BOOTTIME_OFFSET PATH=$PATH:$target/test-servers/bin
result=0
"$target/release/comparison" run "$@" || result=$?
"$target/release/comparison" page
exit "$result"

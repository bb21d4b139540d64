#!/usr/bin/env bash
# Runs one test program with the number of tests at the same time that it allows: cargo's `runner`, set by scripts/test.sh. The programs
# with servers, the simulation and the models skip the tests with one of the words of POLYLOCK_TEST_SKIP in their names.
set -euo pipefail
# The lanes `conformance`, `processes` and `scenarios` have one program each, the longest ones; `processor` has those that only compute, and
# `others` all the rest.
program=${1##*/}
program=${program%-*}
case ${POLYLOCK_TEST_LANE-all}:$program in
    all:* | conformance:conformance | processes:processes | scenarios:scenarios | processor:polylock_models | processor:polylock_fuzz) ;;
    processor:polylock_integration_tests) set -- "$@" simulation:: ;;
    others:polylock_integration_tests) set -- "$@" --skip simulation:: ;;
    others:conformance | others:processes | others:scenarios | others:polylock_models | others:polylock_fuzz) exit 0 ;;
    others:*) ;;
    *) exit 0 ;;
esac
# A test may run cargo itself.
unset POLYLOCK_TEST_LANE RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS
# Most tests wait, and those with a load take turns. On a disk the syncs of one test delay the replies in others; there are tests with
# deadlines of some hundred milliseconds.
case $program:${TMPDIR-} in
    conformance:/dev/shm/*) threads=$(($(nproc) * 4)) ;;
    memory:/dev/shm/* | planted:/dev/shm/*) threads=$(($(nproc) * 3)) ;;
    # These two run at the same time, for about as long as each other.
    processes:/dev/shm/*) threads=$(($(nproc) * 3 / 2)) ;;
    scenarios:/dev/shm/*) threads=$(($(nproc) * 2)) ;;
    conformance:* | memory:* | planted:* | processes:*) threads=$(($(nproc) * 2)) ;;
    *) threads=$(nproc) ;;
esac
for part in ${POLYLOCK_TEST_SKIP-}; do
    case $program:$part in
        conformance:* | scenarios:* | processes:* | polylock_models:* | polylock_integration_tests:simulation::*) set -- "$@" --skip "$part" ;;
    esac
done

# A shell without job control, and `nohup`, start programs in the background that ignore SIGINT and SIGHUP; `polylock run` leaves them ignored.
set -- env --default-signal "$@"

# libtest measures the time of each test for nightly toolchains, and for the standard library's own bootstrap. The variable is set for
# the test programs alone: it would change what is built.
export RUSTC_BOOTSTRAP=1
case $program in
    # The stopped holders come last: the kernel may suspend them between a check and a poll on a busy machine.
    processes)
        result=0
        RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads} "$@" --skip stops:: || result=$?
        RUST_TEST_THREADS=3 "$@" stops:: || result=$?
        exit "$result"
        ;;
    *) RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads} exec "$@" ;;
esac

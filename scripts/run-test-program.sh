#!/usr/bin/env bash
# Runs one test program with the number of tests at the same time that it allows: cargo's `runner`, set by scripts/test.sh. The programs
# with servers, the simulation and the models skip the tests with one of the words of POLYLOCK_TEST_SKIP in their names.
set -euo pipefail
# The lane `servers` has the longest programs, one after the other, because a busy machine misses deadlines; `processor` has those that only
# compute, and `others` all the rest.
case ${POLYLOCK_TEST_LANE-all}:${1##*/} in
    all:* | servers:conformance-* | servers:processes-* | servers:scenarios-* | processor:polylock_models-* | processor:polylock_fuzz-*) ;;
    processor:polylock_integration_tests-*) set -- "$@" simulation:: ;;
    servers:* | processor:* | others:conformance-* | others:processes-* | others:scenarios-* | others:polylock_models-* | others:polylock_fuzz-*) exit 0 ;;
    others:polylock_integration_tests-*) set -- "$@" --skip simulation:: ;;
esac
# A test may run cargo itself.
unset POLYLOCK_TEST_LANE RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS
# Most tests wait, and those with a load take turns. On a disk the syncs of one test delay the replies in others; there are tests with
# deadlines of some hundred milliseconds.
case ${1##*/}:${TMPDIR-} in
    conformance-*:/dev/shm/*) threads=$(($(nproc) * 4)) ;;
    memory-*:/dev/shm/* | planted-*:/dev/shm/* | processes-*:/dev/shm/* | scenarios-*:/dev/shm/*) threads=$(($(nproc) * 3)) ;;
    conformance-*:* | memory-*:* | planted-*:* | processes-*:*) threads=$(($(nproc) * 2)) ;;
    *) threads=$(nproc) ;;
esac
for part in ${POLYLOCK_TEST_SKIP-}; do
    case ${1##*/}:$part in
        conformance-* | scenarios-* | processes-* | polylock_models-* | polylock_integration_tests-*:simulation::*) set -- "$@" --skip "$part" ;;
    esac
done

# libtest measures the time of each test for nightly toolchains, and for the standard library's own bootstrap. The variable is set for
# the test programs alone: it would change what is built.
export RUSTC_BOOTSTRAP=1
case ${1##*/} in
    # The stopped holders come last: the kernel may suspend them between a check and a poll on a busy machine.
    processes-*)
        result=0
        RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads} "$@" --skip stops:: || result=$?
        RUST_TEST_THREADS=3 "$@" stops:: || result=$?
        exit "$result"
        ;;
    *) RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads} exec "$@" ;;
esac

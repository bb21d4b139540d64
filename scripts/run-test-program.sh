#!/usr/bin/env bash
# Runs one test program with the number of tests at the same time that it allows: cargo's `runner`, set by scripts/test.sh. The programs
# with servers, and the simulation, skip the tests with one of the words of POLYLOCK_TEST_SKIP in their names.
set -euo pipefail
case ${1##*/} in
    # Their tests mostly wait, and allow for a busy machine. Those with a load take turns.
    conformance-* | memory-* | planted-* | processes-*) threads=$(($(nproc) * 2)) ;;
    # The other programs have deadlines of some hundred milliseconds, and leases that must be renewed in time beside a load.
    *) threads=$(nproc) ;;
esac
for part in ${POLYLOCK_TEST_SKIP-}; do
    case ${1##*/}:$part in
        conformance-* | scenarios-* | processes-* | polylock_integration_tests-*:simulation::*) set -- "$@" --skip "$part" ;;
    esac
done

# libtest measures the time of each test for nightly toolchains, and for the standard library's own bootstrap. The variable is set for
# the test programs alone: it would change what is built.
export RUSTC_BOOTSTRAP=1
case ${1##*/} in
    # The stopped holders come last and alone: the kernel may suspend them between a check and a poll on a busy machine.
    processes-*)
        result=0
        RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads} "$@" --skip stops:: || result=$?
        RUST_TEST_THREADS=1 "$@" stops:: || result=$?
        exit "$result"
        ;;
    *) RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads} exec "$@" ;;
esac

#!/usr/bin/env bash
# Tests the console of the lock service in headless Chromium.
#
#   integration-tests/console/test.sh PROGRAM [SCREENSHOTS]     PROGRAM is the command `polylock`; SCREENSHOTS is a directory
set -euo pipefail
POLYLOCK_PROGRAM=$(realpath "$1")
SCREENSHOTS=${2:+$(realpath -m "$2")}
export POLYLOCK_PROGRAM SCREENSHOTS
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp package.json package-lock.json console.test.js "$work"
cd "$work"
npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error
node --test console.test.js

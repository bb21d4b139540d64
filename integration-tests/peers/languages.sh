#!/usr/bin/env bash
# Runs clients of the lock service in several languages at the same time, under the faults of `chaos`: one process each for
# Rust, Python, TypeScript and Go. The arguments are those of `chaos`, such as `--dense --seconds 300`; with `--store http_restarts`, one of the
# services is killed or stopped every second.
set -euo pipefail
cd "$(dirname "$0")/../.."
peers=$PWD/integration-tests/peers
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
out=$target/peers
mkdir -p "$out/bin" "$out/typescript"

cp -r clients/typescript/. "$out/typescript"
(cd "$out/typescript" && npm ci --silent --no-audit --no-fund --no-update-notifier && npm run --silent build)
(cd "$peers/go" && go build -o "$out/bin/worker-go" .)
${CARGO:-cargo} build --quiet --locked --workspace --all-features --bins

# `chaos URL NAME …`: the name of a process begins with its number, from 0 to 3.
cat >"$out/bin/languages" <<EOF
#!/bin/sh
case "\$3" in
    p1.*) exec python3 $peers/python/worker.py polylock-python "\$@" ;;
    p2.*) exec node $peers/node/worker.js polylock-typescript "\$@" ;;
    p3.*) exec $out/bin/worker-go polylock-go "\$@" ;;
    *) exec $target/debug/worker "\$@" ;;
esac
EOF
chmod +x "$out/bin/languages"

BOOTTIME_OFFSET=$(python3 -c 'from time import *; print(clock_gettime_ns(CLOCK_BOOTTIME) - clock_gettime_ns(CLOCK_MONOTONIC))')
export BOOTTIME_OFFSET PYTHONPATH=$PWD/clients/python/src POLYLOCK_CLIENT=$out/typescript/dist/index.js
# `scripts/test.sh` puts servers there that the system lacks.
export PATH=$PATH:$target/test-servers/bin
exec "$target/debug/chaos" --store http_languages --worker "$out/bin/languages" "$@"

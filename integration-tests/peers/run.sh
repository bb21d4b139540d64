#!/usr/bin/env bash
# Installs other lock libraries in target/peers, and runs those named, or all, under the faults of `chaos`: see README.md. With --install, it
# only installs them.
set -euo pipefail
cd "$(dirname "$0")/../.."
peers=$PWD/integration-tests/peers
out=$PWD/target/peers
record=${RECORD:-integration-tests/record/peers.jsonl}
# Its schedule of 31 s has nine of the ten kinds of faults.
seed=${SEED:-21}
# `scripts/test.sh` puts servers there that the system lacks.
export PATH=$PATH:$PWD/target/test-servers/bin
mkdir -p "$out/bin" "$out/java"

# Writes a program that `chaos --peer NAME` starts.
program() { # NAME COMMAND...
    printf '#!/bin/sh\nexec %s "$@"\n' "${*:2} $1" > "$out/bin/$1"
    chmod +x "$out/bin/$1"
}

cargo build --quiet --release --locked --manifest-path "$peers/rust/Cargo.toml" --target-dir "$out/rust"
program rslock "$out/rust/release/polylock-peer-worker"
program distributed-lock "$out/rust/release/polylock-peer-worker"

python3 -m venv "$out/python"
"$out/python/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$peers/python/requirements.txt"
program redis-py "$out/python/bin/python" "$peers/python/worker.py"
program kazoo "$out/python/bin/python" "$peers/python/worker.py"

mkdir -p "$out/node"
cp "$peers"/node/* "$out/node"
npm ci --silent --prefix "$out/node"
program node-redlock node "$out/node/worker.js"

# The packages of this version are installed, or the script ends.
xargs dpkg -s < <(cut -d= -f1 "$peers/java/packages") > /dev/null 2>&1 \
    || xargs apt-get install -qq --no-install-recommends default-jdk-headless < "$peers/java/packages" > /dev/null
jars=$(printf '%s:' /usr/share/java/{curator-recipes,curator-framework,curator-client,zookeeper,zookeeper-jute,guava,slf4j-api,slf4j-nop}.jar)
javac -cp "$jars" -d "$out/java" "$peers/java/Worker.java"
program curator java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx128m -cp "$jars$out/java" Worker

[ "${1:-}" != --install ] || exit 0

BOOTTIME_OFFSET=$(python3 -c 'from time import *; print(clock_gettime_ns(CLOCK_BOOTTIME) - clock_gettime_ns(CLOCK_MONOTONIC))')
export BOOTTIME_OFFSET
${CARGO:-cargo} build --quiet -p polylock-integration-tests --all-features --bin chaos --bin worker
[ $# -gt 0 ] || set -- polylock-redis distributed-lock redis-py polylock-redlock rslock node-redlock polylock-zookeeper kazoo curator
for peer; do
    target/debug/chaos --peer "$peer" --seed "$seed" --seconds 11 --fault "client killed" --record "$record"
    target/debug/chaos --peer "$peer" --seed "$seed" --seconds 31 --record "$record"
done

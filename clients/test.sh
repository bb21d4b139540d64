#!/usr/bin/env bash
# Builds the package of each client, installs it from the built file, and runs its tests against `polylock serve`.
#
#   clients/test.sh PROGRAM     PROGRAM is the command `polylock`
set -euo pipefail
POLYLOCK_PROGRAM=$(realpath "$1")
POLYLOCK_VECTORS=$(realpath "$(dirname "$0")/vectors.json")
export POLYLOCK_PROGRAM POLYLOCK_VECTORS
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== Python"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work" "$(
    # The build writes into its directory.
    cp -r python "$work/python" && echo "$work/python"
)"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$work"/*.whl
# The tests import the installed package.
(cd "$work" && "$work/venv/bin/python" -W error::ResourceWarning -m unittest discover -s "$work/python/tests")

echo "== Go"
module=github.com/polylock/polylock/clients/go version=v0.1.0
# The tests import the module from a proxy, as the users of a published version do.
mkdir -p "$work/zip/$module@$version" "$work/proxy/$module/@v" "$work/go"
cp go/*.go go/go.mod "$work/zip/$module@$version"
rm "$work/zip/$module@$version/"*_test.go
# No entries for directories: Go refuses them.
(cd "$work/zip" && python3 - "$work/proxy/$module/@v/$version.zip" "$module@$version" <<'EOF'
import pathlib, sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
    for file in sorted(pathlib.Path(sys.argv[2]).iterdir()):
        archive.write(file)
EOF
)
cp go/go.mod "$work/proxy/$module/@v/$version.mod"
echo "{\"Version\":\"$version\"}" >"$work/proxy/$module/@v/$version.info"
cp go/polylock_test.go go/vectors_test.go "$work/go"
(
    cd "$work/go"
    export GOPROXY=file://$work/proxy GOSUMDB=off GOFLAGS="-mod=mod -modcacherw" GOPATH=$work/gopath GOCACHE=$work/gocache GOTOOLCHAIN=local
    go mod init tests 2>/dev/null
    go mod edit -require="$module@$version"
    go vet . && go test -count=1 .
)
# Those of the package itself.
(cd go && GOCACHE=$work/gocache GOFLAGS=-mod=mod go test -count=1 -run Deadlines .)

echo "== TypeScript"
cp -r typescript "$work/typescript"
quiet=(--no-audit --no-fund --no-update-notifier --loglevel=error)
(cd "$work/typescript" && npm ci "${quiet[@]}" && npm pack "${quiet[@]}" --pack-destination "$work" >/dev/null)
# The tests import the installed package.
mkdir "$work/installed"
cp "$work/typescript/test/"*.js "$work/installed"
(cd "$work/installed" && echo '{"type":"module"}' >package.json && npm install "${quiet[@]}" "$work"/polylock-client-*.tgz && node --test .)

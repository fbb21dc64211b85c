#!/bin/sh
# Makes .clients, the environment of the clients that tests run against a gateway; quick when nothing changed.
set -eu
cd "$(dirname "$0")/.."
wanted=$(cat requirements/clients.lock requirements/clients.package.json | sha256sum | cut -d' ' -f1)
[ "$(cat .clients/installed 2>/dev/null || true)" = "$wanted" ] && exit 0
. requirements/uv.sh
"$uv" venv -q --clear --python .venv/bin/python .clients
uv_install .clients/bin/python --require-hashes -r requirements/clients.lock
if command -v npm >/dev/null; then
  cp requirements/clients.package.json .clients/package.json
  npm install --prefix .clients --silent --no-audit --no-fund --no-package-lock --ignore-scripts
else
  echo "npm is not installed: the clients for Node are left out" >&2
fi
if command -v javac >/dev/null; then
  ln -s "$(command -v java)" .clients/bin/java
else
  echo "no JDK is installed: Java's HttpClient is left out" >&2
fi
echo "$wanted" > .clients/installed

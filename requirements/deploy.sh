#!/bin/sh
# Makes .deploy, the environment of the tools that check deploy/ in `make test-deploy`; quick when nothing changed.
set -eu
cd "$(dirname "$0")/.."
wanted=$(sha256sum requirements/deploy.lock | cut -d' ' -f1)
[ "$(cat .deploy/installed 2>/dev/null || true)" = "$wanted" ] && exit 0
. requirements/uv.sh
"$uv" venv -q --clear --python .venv/bin/python .deploy
uv_install .deploy/bin/python --require-hashes -r requirements/deploy.lock
echo "$wanted" > .deploy/installed

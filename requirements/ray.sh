#!/bin/sh
# Adds Ray to .venv, for the placer of replicas on a Ray cluster; quick when nothing changed.
set -eu
cd "$(dirname "$0")/.."
wanted=$(cat requirements/ray.lock .venv/.tenora-stamp | sha256sum | cut -d' ' -f1)
[ "$(cat .venv/.ray-stamp 2>/dev/null || true)" = "$wanted" ] && exit 0
. requirements/uv.sh
uv_install .venv/bin/python --require-hashes -r requirements/ray.lock
echo "$wanted" > .venv/.ray-stamp

#!/bin/sh
# Creates .venv from the lock of the chosen flavor. Runs again only when a lock, a script here or pyproject.toml changed.
set -eu
cd "$(dirname "$0")/.."
flavor=${TENORA_FLAVOR:-cpu}
lock=requirements/$flavor.lock
case $flavor in cpu | gpu) ;; *) echo "setup: TENORA_FLAVOR is '$flavor'; it can be cpu or gpu" >&2; exit 2 ;; esac
stamp=.venv/.tenora-stamp
want=$(cat "$lock" requirements/installer.lock requirements/install.sh requirements/uv.sh requirements/pip_settings.py \
  requirements/runtime.in pyproject.toml | sha256sum | cut -c1-64)-$flavor-$PWD
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi
case "$(uname -sm)" in "Linux x86_64") ;; *) echo "setup: the locks are for Linux on x86_64; this is $(uname -sm)" >&2; exit 2 ;; esac

start=$(date +%s)
echo "setup: installing the $flavor lock ($(grep -c '^[A-Za-z0-9].*==' "$lock") packages, about 4 GB) into .venv"
. requirements/uv.sh

is_3_11() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

find_3_11() { "$uv" python find --system --no-python-downloads cpython@3.11 2>/dev/null; }

if ! is_3_11 .venv/bin/python; then
  # A Python 3.11 of the system comes first, unless the user chose uv's own with UV_MANAGED_PYTHON or UV_PYTHON_PREFERENCE.
  [ -n "${UV_MANAGED_PYTHON:-}" ] || export UV_PYTHON_PREFERENCE="${UV_PYTHON_PREFERENCE:-system}"
  if [ "${PYTHON:-python3.11}" != python3.11 ]; then
    is_3_11 "$PYTHON" || { echo "setup: PYTHON is '$PYTHON', which is not a Python 3.11" >&2; exit 2; }
    python=$(command -v "$PYTHON")
  elif ! python=$(find_3_11); then
    # uv checks the digest of what it downloads. --no-bin leaves the user's PATH as it is.
    echo "setup: no Python 3.11 on the PATH; uv downloads one into $("$uv" python dir)"
    if ! { "$uv" python install -q --no-bin cpython@3.11 && python=$(find_3_11); }; then
      echo "setup: Python 3.11 could not be downloaded. Install it (Debian 12: apt install python3; Fedora: dnf install python3.11)," \
        "name one with PYTHON=/path/to/python3.11, or point UV_PYTHON_INSTALL_MIRROR at a copy of python-build-standalone's releases" >&2
      exit 2
    fi
  fi
  "$uv" venv -q --clear --python "$python" .venv
fi
rm -f "$stamp"

install_lock() { uv_install .venv/bin/python --require-hashes "$@"; }

failed=$(mktemp)
trap 'rm -f "$failed" "$failed.torch" "$failed.lock"' EXIT
# To ==, torch 2.13.0+cpu is a 2.13.0, and the newest: a folder that has it would hide the lock's torch for a GPU. === is exact.
sed 's/^\([^ ;#=]*\)==/\1===/' "$lock" > "$failed.lock"
lock=$failed.lock
if ! install_lock -r "$lock" 2>"$failed"; then
  # torch for the CPU is in no default index. Where the configured sources lack it, it alone comes from PyTorch's own.
  { [ "$flavor" = cpu ] && grep -q 'torch==[^ ]*+cpu' "$failed"; } || { cat "$failed" >&2; exit 1; }
  awk '/^[A-Za-z0-9]/{keep=/^torch==/} keep' "$lock" > "$failed.torch"
  UV_INDEX='' install_lock --default-index https://download.pytorch.org/whl/cpu -r "$failed.torch" ||
    { cat "$failed" >&2; echo "setup: no source has torch for the CPU; point PIP_FIND_LINKS at a folder with its wheel" >&2; exit 1; }
  install_lock -r "$lock"
fi
uv_install .venv/bin/python --no-build-isolation --editable .
printf %s "$want" > "$stamp"
echo "setup: done in $(( $(date +%s) - start )) s"

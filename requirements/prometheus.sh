#!/bin/sh
# Unpacks Debian's Prometheus into .prometheus, without installing it; quick when it is there. Needs apt and a mirror.
set -eu
cd "$(dirname "$0")/.."
[ -x .prometheus/usr/bin/prometheus ] && exit 0
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
(cd "$download" && apt-get download -q prometheus) || {
  echo "Prometheus is not on this machine's Debian mirror: run apt-get update, or unpack its binaries into .prometheus/usr/bin" >&2
  exit 1
}
dpkg-deb -x "$download"/prometheus_*.deb .prometheus

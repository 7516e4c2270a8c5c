#!/usr/bin/env bash
# What some tests need beside Python: a Chromium that opens reports. Only for Debian and Ubuntu, as root.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
  if command -v "$name" > /dev/null; then
    echo "all there: $name"
    exit 0
  fi
done
command -v apt-get > /dev/null || {
  echo "tests/install.sh knows Debian and Ubuntu only. Needed elsewhere: Chromium." >&2
  exit 2
}
((EUID == 0)) || {
  echo "installing chromium needs root: sudo $0" >&2
  exit 2
}
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends chromium

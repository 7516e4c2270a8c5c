#!/usr/bin/env bash
# Installs the packages that up.sh needs. Only for Debian and Ubuntu, as root. Does nothing when all are there.
set -euo pipefail

packages=(munge slurm-wlm slurmdbd mariadb-server)

command -v cc > /dev/null || packages+=(gcc libc6-dev) # for nodes with a look

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null) == installed ]]; }

command -v apt-get > /dev/null || {
  echo "install.sh knows Debian and Ubuntu only. Needed elsewhere: munge, Slurm with slurmdbd, MariaDB." >&2
  exit 2
}
missing=()
for package in "${packages[@]}"; do is_installed "$package" || missing+=("$package"); done
if ((${#missing[@]} == 0)); then
  echo "all there: ${packages[*]}"
  exit 0
fi
((EUID == 0)) || {
  echo "installing ${missing[*]} needs root: sudo $0" >&2
  exit 2
}
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends "${missing[@]}"
echo "installed: ${missing[*]}. The services that the packages bring (munge, mariadb) aren't used and may be stopped."

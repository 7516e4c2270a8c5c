#!/usr/bin/env bash
# Stops the development cluster. Does nothing when it isn't up; logs, configuration and accounting data stay.
set -euo pipefail
# shellcheck source=lib/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
# shellcheck source=lib/process.sh
. "$DEV/lib/process.sh"

load_saved_knobs || { say "down: no cluster was ever started in $STATE"; exit 0; }
((EUID == 0)) || refuse "stopping the cluster needs root"
take_lock
stop_cluster
say "down; logs are in $STATE/log"

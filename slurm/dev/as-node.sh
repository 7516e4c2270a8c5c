#!/usr/bin/env bash
# Runs a command on this machine made to look like another one: as-node.sh LOOK COMMAND...
set -euo pipefail
# shellcheck source=lib/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
read_knobs
# shellcheck source=lib/look.sh
. "$DEV/lib/look.sh"

(($# >= 2)) || { echo "usage: as-node.sh LOOK COMMAND...; looks: $(look_names), or a recording" >&2; exit 2; }
look=$1
shift
((EUID == 0)) || refuse "a look needs root (it covers /sys in a mount namespace)"
[[ -r $(look_file "$look") ]] || refuse "no look '$look'; there are: $(look_names)"
LOOKS=here=$look check_look_tools
unshare --mount true 2> /dev/null || refuse "this machine doesn't let root make namespaces"
mkdir -p "$STATE/looks"
(exec 9> "$STATE/looks/lock" && flock 9 && prepare_look "$look") >&2
dir=$(look_dir "$look")
mapfile -t pairs < <(look_environment "$dir" here)
export -f wear_look
# shellcheck disable=SC2016
exec unshare --mount bash -c 'wear_look "$1"; shift; exec env "$@"' bash "$dir" "${pairs[@]}" "$@"

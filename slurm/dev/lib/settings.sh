# shellcheck shell=bash
# Where the cluster's files are, and the knobs it is started with. Sourced, never run.

DEV=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
REPO=$(cd "$DEV/../.." && pwd -P)
STATE=$(realpath -m -- "${STATE:-$REPO/.cluster}")
PATH=$PATH:/usr/sbin:/sbin
export SLURM_CONF=$STATE/etc/slurm.conf

SAVED_KNOBS=(NODES PRIVATE_NODES SOCKETS CORES THREADS MEM GPUS GPUTYPE FEATURES TASKPLUGIN DBD LOOKS BASEPORT RUN)

say() { printf '%s\n' "$*"; }

# Exit code 2: the request can't be met here, and nothing was touched.
refuse() {
  printf 'refused: %s\n' "$*" >&2
  exit 2
}

read_knobs() {
  : "${NODES:=4}" "${PRIVATE_NODES=n3 n4}"
  : "${SOCKETS:=2}" "${CORES:=4}" "${THREADS:=2}" "${MEM:=128000}"
  : "${GPUS:=8}" "${GPUTYPE:=h100}" "${FEATURES:=$GPUTYPE}"
  : "${TASKPLUGIN:=task/none}" "${EXTRA:=}"
  : "${DBD:=1}" "${KEEP:=0}" "${LINK:=0}" "${LOOKS:=}" "${BASEPORT:=}"
}

check_knobs() {
  local name
  for name in NODES SOCKETS CORES THREADS MEM; do
    [[ ${!name} =~ ^[1-9][0-9]*$ ]] || refuse "$name=${!name} isn't a positive whole number"
  done
  [[ $GPUS =~ ^[0-9]+$ ]] || refuse "GPUS=$GPUS isn't a whole number"
  [[ $BASEPORT =~ ^[0-9]*$ ]] || refuse "BASEPORT=$BASEPORT isn't a port number"
  for name in DBD KEEP LINK; do
    [[ ${!name} == [01] ]] || refuse "$name=${!name} must be 0 or 1"
  done
  check_looks
  # slurm.conf knows no quoting, and % and # mean something in it.
  [[ $STATE =~ ^[A-Za-z0-9._/+=@-]+$ ]] ||
    refuse "Slurm can't read the path '$STATE'; set STATE to one of plain letters, digits and . _ / + = @ -"
}

# node.sh and down.sh work on the cluster as it was started, whatever their own environment says.
save_knobs() {
  local name
  for name in "${SAVED_KNOBS[@]}"; do printf '%s=%q\n' "$name" "${!name}"; done > "$STATE/etc/settings.sh"
}

load_saved_knobs() {
  [[ -r $STATE/etc/settings.sh ]] || return 1
  # shellcheck source=/dev/null
  . "$STATE/etc/settings.sh"
}

# Ask it with `grep > /dev/null`: `grep -q` leaves at the first match, and pipefail takes the SIGPIPE for "not found".
node_names() {
  local i
  for ((i = 1; i <= NODES; i++)); do echo "n$i"; done
}

# A look is a recording: one of looks/, or a file that `himori probe -o` wrote.
look_file() { if [[ $1 == */* ]]; then realpath -m -- "$1"; else echo "$DEV/looks/$1.yaml"; fi; }

look_names() { find "$DEV/looks" -name '*.yaml' -printf '%f\n' | sed 's/\.yaml$//' | sort | xargs; }

is_private() { [[ " $PRIVATE_NODES " == *" $1 "* ]]; }

# The look of node $1: the part behind `=` of its word in $LOOKS; nothing for a plain node.
look_of() {
  local pair
  for pair in $LOOKS; do [[ $pair != "$1="* ]] || echo "${pair#*=}"; done
}

check_looks() {
  local pair
  for pair in $LOOKS; do
    [[ $pair == *=?* ]] || refuse "LOOKS: '$pair' isn't of the form NODE=LOOK"
    node_names | grep -xF "${pair%%=*}" > /dev/null || refuse "LOOKS: ${pair%%=*} isn't a node; there are: $(node_names | xargs)"
    [[ -r $(look_file "${pair#*=}") ]] || refuse "LOOKS: no look '${pair#*=}'; there are: $(look_names)"
  done
}

#!/usr/bin/env bash
# Starts or breaks one node of the running cluster.
set -euo pipefail
# shellcheck source=lib/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
# shellcheck source=lib/process.sh
. "$DEV/lib/process.sh"

usage() {
  cat >&2 << 'EOF'
usage: node.sh ACTION NODE
  start  start the node, or only its slurmd if that was killed; does nothing when both run
  kill   power loss: everything on the node is gone at once
  killd  kill slurmd only; the processes of jobs live on
  stop   freeze slurmd (SIGSTOP), so that the node seems to hang
  cont   let a frozen slurmd go on
EOF
  exit 2
}

children_of() { cat "/proc/$1/task/$1/children" 2> /dev/null; }

# Pid of the node's PID 1, as seen from outside.
init_pid() {
  local outer children
  outer=$(running "node-$1") && children=$(children_of "$outer") && [[ -n $children ]] && echo "${children%% *}"
}

# A child of PID 1 named slurmd: the daemons of steps have another name.
slurmd_pid() {
  local init pid
  init=$(init_pid "$1") || return 1
  for pid in $(children_of "$init"); do
    [[ $(cat "/proc/$pid/comm" 2> /dev/null) == slurmd ]] || continue
    if start_time "$pid" > /dev/null; then echo "$pid" && return; fi
  done
  return 1
}

start_node() {
  if slurmd_pid "$1" > /dev/null; then return 0; fi
  if running "node-$1" > /dev/null; then
    kill -s USR1 "$(init_pid "$1")"
  else
    # --kill-child: when this unshare dies, the kernel kills PID 1 of the node and with it all the rest.
    launch "node-$1" unshare --uts --mount --pid --fork --kill-child --mount-proc bash "$DEV/node-init.sh" "$1"
  fi
  wait_until 10 slurmd_pid "$1" || { say "slurmd doesn't start on $1; see $STATE/log/node-$1.log" >&2; exit 1; }
}

signal_slurmd() {
  local pid
  pid=$(slurmd_pid "$1") || { say "no slurmd runs on $1" >&2; exit 1; }
  kill -s "$2" "$pid"
}

(($# == 2)) || usage
action=$1 node=$2
load_saved_knobs || refuse "no cluster was ever started in $STATE"
node_names | grep -xF "$node" > /dev/null || refuse "$node isn't a node; there are: $(node_names | xargs)"
case $action in
  start) start_node "$node" ;;
  kill) stop_process "node-$node" KILL ;;
  killd) signal_slurmd "$node" KILL ;;
  stop) signal_slurmd "$node" STOP ;;
  cont) signal_slurmd "$node" CONT ;;
  *) usage ;;
esac

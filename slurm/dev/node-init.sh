#!/usr/bin/env bash
# PID 1 of one node. node.sh starts it in namespaces of its own; never run it by hand: it changes hostname and mounts.
set -euo pipefail
# shellcheck source=lib/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
load_saved_knobs
NODE=$1

# task_env NAME VALUE: for hooks; every task and batch script on this node gets the variable.
task_env() { printf 'export %s=%s\n' "$1" "$2" >> "$STATE/nodes/$NODE.task-env"; }

# task_prolog COMMAND...: for hooks; prints further `export NAME=VALUE` lines for a task, in the task's environment.
task_prolog() { printf '%q ' "$@" >> "$STATE/nodes/$NODE.task-prolog"; echo >> "$STATE/nodes/$NODE.task-prolog"; }

start_slurmd() { slurmd -D -N "$NODE" & }

hostname "$NODE"
mount --bind "$STATE/etc/hosts" /etc/hosts
mkdir -p "$RUN/spool/$NODE"
: > "$STATE/nodes/$NODE.task-env"
: > "$STATE/nodes/$NODE.task-prolog"
task_env SLURM_CONF "$SLURM_CONF"
for hook in "$DEV"/node-hook/*.sh; do
  # shellcheck source=/dev/null
  . "$hook"
done

# node.sh start asks for a new slurmd this way when the old one was killed and the node's jobs live on.
trap start_slurmd USR1
start_slurmd

# bash reaps the orphans that end up here. The idle child gives it something to wait for.
sleep infinity &
idle=$!
while [[ -d /proc/$idle ]]; do wait "$idle" || true; done

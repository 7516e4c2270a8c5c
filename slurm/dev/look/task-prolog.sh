#!/usr/bin/env bash
# Part of Slurm's TaskProlog on a node with a look: prints what a task has to know to believe in it. As a cgroup with
# ConstrainCores=yes would, it leaves the task only the CPUs that Slurm gave its job on this node.
set -euo pipefail
# shellcheck source=../lib/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/settings.sh"
# shellcheck source=../lib/look.sh
. "$DEV/lib/look.sh"
load_saved_knobs
node=$1
dir=$(look_dir "$(look_of "$node")")
# shellcheck source=/dev/null
. "$dir/look.sh"

# In Slurm's numbering, as ranges: from `Nodes=n[1-2] CPU_IDs=0-15` of the line that this node is in.
allocated() {
  local nodes cpus
  scontrol --details --oneliner show job "$SLURM_JOB_ID" | grep -oE '\bNodes=\S+ CPU_IDs=\S+' |
    while read -r nodes cpus; do
      ! scontrol show hostnames "${nodes#Nodes=}" | grep -xF "$node" > /dev/null || echo "${cpus#CPU_IDs=}"
    done
}

# Slurm's numbers on standard input, one a line, as CPUs of the look.
to_cpus() {
  local order number
  read -ra order <<< "$LOOK_CPU_ORDER"
  while read -r number; do echo "${order[number]}"; done
}

expand() { tr , '\n' | while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done; }

as_ranges() {
  sort -n | awk 'function flush() { printf "%s%s", sep, first == last ? first : first "-" last; sep = "," }
    NR == 1 { first = last = $1; next } $1 == last + 1 { last = $1; next } { flush(); first = last = $1 }
    END { if (NR) flush() }'
}

look_environment "$dir" "$node" | sed 's/^/export /'
echo "export FAKENODE_CPUSET=$(allocated | expand | to_cpus | as_ranges)"

#!/usr/bin/env bash
# Starts a real multi-node Slurm on this machine, or says that it is up. README.md lists the knobs.
# Exit codes: 0 up, 1 failed (what was started is stopped again), 2 refused (nothing was touched).
set -euo pipefail
# shellcheck source=lib/settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
# shellcheck source=lib/process.sh
. "$DEV/lib/process.sh"
# shellcheck source=lib/look.sh
. "$DEV/lib/look.sh"
# shellcheck source=lib/config.sh
. "$DEV/lib/config.sh"
# shellcheck source=lib/accounting.sh
. "$DEV/lib/accounting.sh"

check_machine() {
  local name missing=() needed=(munged slurmctld slurmd sbatch sinfo)
  [[ $DBD == 0 ]] || needed+=(slurmdbd sacctmgr mariadbd mariadb mariadb-install-db)
  ((EUID == 0)) || refuse "the development cluster needs root (slurmd, namespaces, device nodes)"
  for name in "${needed[@]}"; do command -v "$name" > /dev/null || missing+=("$name"); done
  ((${#missing[@]} == 0)) || refuse "not installed: ${missing[*]}; run slurm/dev/install.sh"
  unshare --uts --mount --pid --fork --mount-proc true 2> /dev/null ||
    refuse "this machine doesn't let root make namespaces; a container has to be privileged"
  check_look_tools
}

check_system_conf() {
  local name link
  [[ $LINK == 1 ]] || return 0
  for name in slurm gres cgroup; do
    link=/etc/slurm/$name.conf
    [[ ! -e $link || $(readlink "$link") == "$STATE/etc/$name.conf" ]] || refuse "LINK=1, but $link is there already"
  done
}

link_system_conf() {
  local name
  [[ $LINK == 1 ]] || return 0
  mkdir -p /etc/slurm
  for name in slurm gres cgroup; do ln -sfn "$STATE/etc/$name.conf" "/etc/slurm/$name.conf"; done
}

daemons_up() {
  local name daemons=(munged slurmctld)
  [[ $DBD == 0 ]] || daemons+=(mariadbd slurmdbd)
  for name in "${daemons[@]}"; do running "$name" > /dev/null || return 1; done
  timeout 15 scontrol ping > /dev/null 2>&1
}

# No node in a state like down, idle*, inval or unknown.
nodes_usable() {
  local states
  states=$(sinfo -h -N -o %T) && [[ -n $states ]] && ! grep -qE '\*|down|inval|unknown|fail|error' <<< "$states"
}

start_nodes() {
  local node
  for node in $(node_names); do "$DEV/node.sh" start "$node" 9>&-; done
  wait_until 60 nodes_usable && return
  say "not all nodes are usable after 60 s; see $STATE/log/slurmd-*.log" >&2
  sinfo -N -l >&2 || true
  return 1
}

listens() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

ports_free() {
  local port
  for ((port = $1 + 1; port <= $1 + 10 + NODES; port++)); do ! listens "$port" || return 1; done
}

# Other clusters (of other checkouts) may run here. Stay below the ports that the kernel hands out by itself.
choose_ports() {
  local base
  if [[ -n $BASEPORT ]]; then
    ports_free "$BASEPORT" || refuse "a port from $((BASEPORT + 1)) to $((BASEPORT + 10 + NODES)) is taken"
    return
  fi
  for ((base = 16800; base < 20000; base += 100)); do
    if ports_free "$base"; then
      BASEPORT=$base
      return
    fi
  done
  refuse "no free range of ports between 16800 and 20000; set BASEPORT"
}

# The path of a unix socket has at most 107 bytes. The longest here are slurmstepd's, SPOOL/NODE/NODE_JOB.STEP.
choose_run_dir() {
  local longest=$STATE/run/spool/n$NODES/n${NODES}_4294967295.4294967295
  RUN=$STATE/run
  if ((${#longest} > 107)); then RUN=$(mktemp -d /var/tmp/himori-cluster.XXXXXX); fi
  mkdir -p "$RUN"
  chmod 755 "$RUN"
}

prepare_state() {
  if [[ $KEEP == 0 ]]; then
    rm -rf "$STATE/ctld" "$STATE/jobs" "$STATE/log.old"
    [[ ! -d $STATE/log ]] || mv "$STATE/log" "$STATE/log.old"
  fi
  mkdir -p "$STATE"/{ctld,etc,gpus,home,jobs,log,nodes,pids}
  choose_run_dir
  save_knobs
  prepare_looks
  write_configuration
}

# With a file that it can't read every Slurm command fails at once, and waiting for a daemon would only hide why.
check_configuration() {
  local answer
  answer=$(timeout 10 scontrol ping 2>&1) || true
  [[ $answer != *"onfiguration file"* ]] || { say "$answer" >&2; return 1; }
}

start_munge() {
  say "munge"
  launch munged munged --foreground --force --num-threads=2 --socket="$RUN/munge.sock" --pid-file="$RUN/munged.pid" \
    --key-file="$STATE/etc/munge.key" --seed-file="$STATE/etc/munge.seed" --log-file="$STATE/log/munged.log"
  await munged 15 munge --socket="$RUN/munge.sock" --no-input
}

start_controller() {
  say "slurmctld"
  launch slurmctld slurmctld -D
  await slurmctld 30 scontrol ping
}

stop_after_failure() {
  local code=$?
  ((code != 0)) || return 0
  say "up.sh failed; logs are in $STATE/log. Stopping what was started." >&2
  stop_cluster
}

start_cluster() {
  trap stop_after_failure EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  prepare_state
  check_configuration
  link_system_conf
  start_munge
  [[ $DBD == 0 ]] || start_accounting
  start_controller
  say "nodes: $(node_names | xargs)"
  start_nodes
}

summary() { sinfo -h -p gpu -o '%N (gres %G, features %f)' | xargs; }

use_running_cluster() {
  load_saved_knobs
  start_nodes
  say "already up: $(summary). Run down.sh first to change knobs. Use it with: . $STATE/env.sh"
}

start_new_cluster() {
  # What is left of a cluster that lost a daemon is of no use to anybody. The subshell keeps its knobs away from ours.
  (! load_saved_knobs || stop_cluster)
  choose_ports
  start_cluster
  say "up: $(summary). Use it with: . $STATE/env.sh"
}

read_knobs
check_knobs
check_machine
check_system_conf
mkdir -p "$STATE"
take_lock
if (load_saved_knobs && daemons_up); then use_running_cluster; else start_new_cluster; fi

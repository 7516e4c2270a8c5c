# shellcheck shell=bash
# Starting, finding and stopping the cluster's processes. A process is only ever touched when both its recorded
# pid and its start time match, so a recycled pid is safe. Sourced after settings.sh, never run.

# One up, down or node command at a time. Descriptor 9 stays open until the script ends.
take_lock() {
  exec 9> "$STATE/lock"
  flock -w 300 9 || { say "another up.sh or down.sh has held $STATE/lock for 5 minutes" >&2; exit 1; }
}

# Start time of process $1 in clock ticks since boot; fails when there is none or it is a zombie.
start_time() {
  local stat fields
  { stat=$(< "/proc/$1/stat"); } 2> /dev/null || return 1
  read -ra fields <<< "${stat##*) }"
  [[ ${fields[0]} != [ZX] ]] && echo "${fields[19]}"
}

# running NAME: prints the pid that launch recorded, if that very process still runs.
running() {
  local pid started
  read -r pid started 2> /dev/null < "$STATE/pids/$1" || return 1
  [[ -n $started && $(start_time "$pid") == "$started" ]] && echo "$pid"
}

# launch NAME COMMAND...: runs it in its own session, with output in log/NAME.log and an environment of its own: what
# the caller's shell holds (tokens, a venv) is none of a daemon's business.
launch() {
  local name=$1 pid path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  shift
  env -i PATH="$path" SLURM_CONF="$SLURM_CONF" STATE="$STATE" setsid "$@" \
    >> "$STATE/log/$name.log" 2>&1 < /dev/null 9>&- &
  pid=$!
  echo "$pid $(start_time "$pid")" > "$STATE/pids/$name"
}

# wait_until SECONDS COMMAND...: polls a silent command; fails when the time is over.
wait_until() {
  local end=$((SECONDS + $1))
  shift
  until "$@" > /dev/null 2>&1; do
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
}

gone() { ! running "$1" > /dev/null; }

# await NAME SECONDS COMMAND...: waits until daemon NAME answers to COMMAND; its death ends the wait early.
await() {
  local name=$1 limit=$2 end=$((SECONDS + $2)) answer=
  shift 2
  while ((SECONDS < end)) && ! gone "$name"; do
    if answer=$("$@" 2>&1); then return; fi
    sleep 0.1
  done
  say "$name doesn't answer within $limit s, or died: $answer" >&2
  say "$STATE/log/$name.log ends with:" >&2
  tail -n 8 "$STATE/log/$name.log" >&2
  return 1
}

# stop_process NAME SIGNAL: asks, waits for at most 15 s, then insists.
stop_process() {
  local name=$1 signal=$2 pid
  if pid=$(running "$name"); then
    kill -s "$signal" "$pid" 2> /dev/null || true
    if ! wait_until 15 gone "$name"; then
      kill -s KILL "$pid" 2> /dev/null || true
      wait_until 5 gone "$name" || say "$name (pid $pid) can't be killed" >&2
    fi
  fi
  rm -f "$STATE/pids/$name"
}

no_jobs() { [[ -z $(timeout 5 squeue -h) ]]; }

# Cancelled jobs let waiting srun commands of users end by themselves. Stubborn ones die with their node.
cancel_jobs() {
  local jobs
  running slurmctld > /dev/null || return 0
  mapfile -t jobs < <(timeout 5 squeue -h -o %A 2> /dev/null | sort -u)
  ((${#jobs[@]})) || return 0
  timeout 5 scancel "${jobs[@]}" 2> /dev/null || true
  wait_until 3 no_jobs || true
}

unlink_system_conf() {
  local name
  for name in slurm gres cgroup; do
    [[ $(readlink "/etc/slurm/$name.conf") != "$STATE/etc/$name.conf" ]] || rm -f "/etc/slurm/$name.conf"
  done
}

# Safe to call at any time, on any leftover. Keeps logs, accounting data and configuration.
stop_cluster() {
  local record name
  cancel_jobs
  for record in "$STATE"/pids/node-*; do
    [[ ! -e $record ]] || stop_process "${record##*/}" KILL
  done
  for name in slurmctld slurmdbd mariadbd munged; do stop_process "$name" TERM; done
  unlink_system_conf
  # RUN holds sockets and the nodes' spool. It is only ours to remove if it is one of the two that up.sh makes.
  case ${RUN:-} in
    "$STATE/run" | /var/tmp/himori-cluster.*) rm -rf -- "$RUN" ;;
  esac
}

# shellcheck shell=bash
# Writes the configuration files of the cluster below $STATE/etc. Sourced after look.sh, never run.

slurm_version() { slurmctld -V | grep -oE '[0-9]+\.[0-9]+' | head -n 1; }

at_least() { [[ $(printf '%s\n' "$1" "$(slurm_version)" | sort -V | head -n 1) == "$1" ]]; }

# Slurm's only way to stay on loopback is to bind to the address of the machine's own name. Where that isn't a loopback
# address, the daemons listen everywhere instead (munge still keeps strangers out).
is_loopback_only() { [[ $(getent hosts "$(hostname -s)") == 127.* ]]; }

accounting_lines() {
  if [[ $DBD == 1 ]]; then
    cat << EOF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((BASEPORT + 2))
AccountingStoragePass=$RUN/munge.sock
# Not job_env: a job's environment may hold tokens.
AccountingStoreFlags=job_comment,job_script
$( ((GPUS == 0)) || echo "AccountingStorageTRES=gres/gpu,gres/gpu:$GPUTYPE")
PriorityType=priority/multifactor
PriorityWeightQOS=10000
PreemptType=preempt/qos
EOF
  else
    cat << EOF
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$STATE/log/jobcomp.log
PreemptType=preempt/partition_prio
EOF
  fi
}

# The knobs as a look has them: what is declared of a plain node, in the names of look.sh.
plain_look() {
  # shellcheck disable=SC2153
  LOOK_SOCKETS=$SOCKETS LOOK_CORES=$CORES LOOK_THREADS=$THREADS LOOK_MEM=$MEM LOOK_GPUS=$GPUS LOOK_GPUTYPE=$GPUTYPE
}

# Prints one line; in a subshell, so that no look shines through to the next node.
node_line() (
  labels=$FEATURES look=$(look_of "$1")
  if [[ -z $look ]]; then
    plain_look
  else
    # shellcheck source=/dev/null
    . "$(look_dir "$look")/look.sh"
    labels=$LOOK_GPUTYPE,$(basename "$look" .yaml)
  fi
  ! is_private "$1" || labels+=,private
  echo "NodeName=$1 NodeHostname=$1 NodeAddr=127.0.0.1 Port=$((BASEPORT + 10 + ${1#n}))" \
    "Sockets=$LOOK_SOCKETS CoresPerSocket=$LOOK_CORES ThreadsPerCore=$LOOK_THREADS RealMemory=$LOOK_MEM" \
    "Feature=$labels" "$( ((LOOK_GPUS == 0)) || echo "Gres=gpu:$LOOK_GPUTYPE:$LOOK_GPUS")"
)

node_lines() {
  local node
  for node in $(node_names); do node_line "$node"; done
}

plain_nodes() {
  local node
  for node in $(node_names); do [[ -n $(look_of "$node") ]] || echo "$node"; done
}

write_slurm_conf() {
  cat > "$STATE/etc/slurm.conf" << EOF
# Written by slurm/dev/up.sh.
ClusterName=dev
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$((BASEPORT + 1))
CommunicationParameters=NoCtldInAddrAny$(! is_loopback_only || echo ,NoInAddrAny)
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits as long as a credential lives, 120 s by default; 5 is the least that Slurm takes.
AuthInfo=socket=$RUN/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$STATE/ctld
SlurmdSpoolDir=$RUN/spool/%n
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/slurmd-%n.pid
SlurmctldLogFile=/dev/null
SlurmdLogFile=$STATE/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=$TASKPLUGIN
TaskProlog=$STATE/etc/task-prolog.sh
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Believe the NodeName lines: the declared hardware is more than this machine has.
SlurmdParameters=config_overrides
GresTypes=gpu
# Refuse at submission what can never run.
EnforcePartLimits=ALL
# A preempted job gets its --signal, so that it can save a checkpoint.
SlurmctldParameters=preempt_send_user_signal
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
# Short times, so that failures show in seconds.
KillWait=5
SlurmdTimeout=15
SlurmctldTimeout=15
MessageTimeout=10
BatchStartTimeout=10
UnkillableStepTimeout=30
InactiveLimit=0
MinJobAge=300
MaxJobCount=20000
MaxArraySize=10001
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,sched_min_interval=0,bf_interval=3,bf_resolution=1,bf_continue
$(accounting_lines)
$(node_lines)
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=1000 PriorityTier=10
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP DefMemPerCPU=1000 PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
$EXTRA
EOF
}

# Slurm counts a GPU only with a character device behind it: these are copies of /dev/null.
make_gpus() {
  local i
  for ((i = 0; i < $1; i++)); do
    [[ -c $STATE/gpus/nvidia$i ]] || mknod -m 666 "$STATE/gpus/nvidia$i" c 1 3
  done
}

# Each socket gets an equal share of the GPUs where that works out.
plain_gres_lines() {
  local group first width share=$GPUS groups=1 nodes
  nodes=$(plain_nodes | paste -sd,)
  [[ -n $nodes ]] && ((GPUS > 0)) || return 0
  make_gpus "$GPUS"
  ((GPUS % SOCKETS)) || { groups=$SOCKETS share=$((GPUS / SOCKETS)); }
  width=$((SOCKETS * CORES / groups))
  for ((group = 0; group < groups; group++)); do
    first=$((group * share))
    echo "NodeName=$nodes Name=gpu Type=$GPUTYPE File=$STATE/gpus/nvidia[$first-$((first + share - 1))]" \
      "Cores=$((group * width))-$(((group + 1) * width - 1))"
  done
}

# look_gres_lines NODE: each GPU with the cores of its NUMA node, numbered by Slurm.
look_gres_lines() (
  i=0
  # shellcheck source=/dev/null
  . "$(look_dir "$(look_of "$1")")/look.sh"
  make_gpus "$LOOK_GPUS"
  for cores in $LOOK_GPU_CORES; do
    echo "NodeName=$1 Name=gpu Type=$LOOK_GPUTYPE File=$STATE/gpus/nvidia$i Cores=$cores"
    i=$((i + 1))
  done
)

write_gres_conf() {
  local node
  {
    echo AutoDetect=off
    plain_gres_lines
    for node in $(node_names); do [[ -z $(look_of "$node") ]] || look_gres_lines "$node"; done
  } > "$STATE/etc/gres.conf"
}

# Nothing here uses cgroups. Newer slurmd load their cgroup plugin all the same, and fail without systemd; older ones
# look which version there is, and fail where a look has covered both.
write_cgroup_conf() {
  local line='# no cgroups'
  [[ -z $LOOKS ]] || line=CgroupPlugin=cgroup/v1
  ! at_least 23.11 || line=CgroupPlugin=disabled
  echo "$line" > "$STATE/etc/cgroup.conf"
}

write_hosts() {
  { echo "127.0.0.1 localhost $(hostname -s)"; node_names | sed 's/^/127.0.0.1 /'; } > "$STATE/etc/hosts"
}

# Slurm runs it before every task and batch script. What a node adds for its tasks is in its own file.
write_task_prolog() {
  cat > "$STATE/etc/task-prolog.sh" << EOF
#!/bin/sh
export STATE='$STATE' SLURM_CONF='$SLURM_CONF'
cat "$STATE/nodes/\$SLURMD_NODENAME.task-env"
. "$STATE/nodes/\$SLURMD_NODENAME.task-prolog"
EOF
  chmod 755 "$STATE/etc/task-prolog.sh"
}

write_munge_key() {
  [[ ! -s $STATE/etc/munge.key ]] || return 0
  (umask 077 && head -c 128 /dev/urandom > "$STATE/etc/munge.key")
}

write_configuration() {
  write_slurm_conf
  write_gres_conf
  write_cgroup_conf
  write_hosts
  write_task_prolog
  write_munge_key
  printf 'export SLURM_CONF=%q\n' "$SLURM_CONF" > "$STATE/env.sh"
}

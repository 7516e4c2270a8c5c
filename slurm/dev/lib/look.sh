# shellcheck shell=bash
# Nodes that look like other machines: what /sys shows is written from a recording, and a preload library answers for
# the kernel out of the same recording. Sourced after settings.sh, never run.

FAKENODE=$STATE/looks/fakenode.so

check_look_tools() {
  [[ -n $LOOKS ]] || return 0
  command -v cc > /dev/null || refuse "a node with a look needs a C compiler (cc); run slurm/dev/install.sh"
  reads_recordings || refuse "a node with a look needs himori's own Python; run \`make venv\`, or set PYTHON"
}

reads_recordings() { project_python -c 'import pipeline.hardware.recording, yaml' 2> /dev/null; }

project_python() {
  local python=${PYTHON:-$REPO/.venv/bin/python}
  [[ -x $python || -n ${PYTHON:-} ]] || python=python3
  PYTHONPATH=$REPO "$python" "$@"
}

look_dir() { echo "$STATE/looks/$(basename "$1" .yaml)"; }

# Compiled and written again only when what they are made from is newer.
prepare_look() {
  local recording dir
  recording=$(look_file "$1") dir=$(look_dir "$1")
  mkdir -p "$STATE/looks"
  [[ $FAKENODE -nt $DEV/look/fakenode.c ]] ||
    cc -std=gnu11 -O2 -Wall -Wextra -shared -fPIC -o "$FAKENODE" "$DEV/look/fakenode.c" -ldl
  [[ $dir/look.sh -nt $recording && $dir/look.sh -nt $DEV/look/fake_tree.py ]] || write_look "$recording" "$dir"
}

# Put together under another name, so that an interrupted one is never taken for complete.
write_look() {
  rm -rf "$2.part"
  project_python "$DEV/look/fake_tree.py" "$1" "$2.part"
  rm -rf "$2"
  mv "$2.part" "$2"
}

prepare_looks() {
  local pair
  for pair in $LOOKS; do
    say "look: $pair"
    prepare_look "${pair#*=}"
  done
}

# In a mount namespace of its own: what the kernel shows becomes what the look in directory $1 shows. All of /sys goes,
# for the cpuset of this machine would contradict the rest; an empty place for cgroups is all that slurmd asks for.
wear_look() {
  mount --bind "$1/sys" /sys
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  mount --bind "$1/proc/driver" /proc/driver
}

# look_environment DIR NODE: one NAME=VALUE a line, for all that is to believe in the look. hwloc would ask the
# processor itself.
look_environment() {
  (
    # shellcheck source=/dev/null
    . "$1/look.sh"
    printf '%s\n' "LD_PRELOAD=$FAKENODE" HWLOC_COMPONENTS=-x86 "FAKENODE_TABLE=$STATE/looks/$2.places" \
      "FAKENODE_CPUS=$LOOK_CPUS" "FAKENODE_MEMS=${FAKENODE_MEMS:-$LOOK_MEMS}" "FAKENODE_MEM_MIB=$LOOK_MEM"
  )
}

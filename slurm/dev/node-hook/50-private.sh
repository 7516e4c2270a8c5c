# shellcheck shell=bash
# Makes a node of $PRIVATE_NODES share nothing but the file system proper: /tmp, /dev/shm and $HOME are its own and
# start empty, as on compute nodes with local scratch and no shared home. Sourced by node-init.sh.
#
# The home is a tmpfs at $STATE/home and tasks get HOME set to it. The real home can't be covered up: Python may be
# installed below it. So a path that spells it out in full is still readable.

# Put together at $1 and moved to /tmp when complete: the checkout and the state stay reachable even below /tmp.
mount_private_tmp() {
  local path stage=$1
  mount -t tmpfs -o mode=1777 tmpfs "$stage"
  for path in "$REPO" "$STATE"; do
    [[ $path == /tmp/* && ! -d $stage/${path#/tmp/} ]] || continue
    mkdir -p "$stage/${path#/tmp/}"
    mount --rbind "$path" "$stage/${path#/tmp/}"
  done
  mount --move "$stage" /tmp
}

if is_private "$NODE"; then
  mount_private_tmp "$STATE/home"
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  mount -t tmpfs -o mode=1777 tmpfs "$STATE/home"
  task_env HOME "$STATE/home"
fi

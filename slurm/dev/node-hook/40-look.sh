# shellcheck shell=bash
# Gives a node of $LOOKS its look. Sourced by node-init.sh.
#
# Each task is told of it by look/task-prolog.sh, slurmd by this environment: so the task plugins see the look as well.

look=$(look_of "$NODE")
if [[ -n $look ]]; then
  # shellcheck source=../lib/look.sh
  . "$DEV/lib/look.sh"
  : > "$STATE/looks/$NODE.places"
  chmod 666 "$STATE/looks/$NODE.places"
  wear_look "$(look_dir "$look")"
  task_prolog "$DEV/look/task-prolog.sh" "$NODE"
  while read -r pair; do export "${pair?}"; done < <(look_environment "$(look_dir "$look")" "$NODE")
fi

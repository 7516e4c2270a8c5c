#!/bin/bash

# Parameters
#SBATCH --comment=himori:20260131-120000-demo-a1b2c3
#SBATCH --exclusive
#SBATCH --gres=gpu:4
#SBATCH --hold
#SBATCH --job-name=himori-unnamed
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/20260131-120000-demo-a1b2c3/attempts/1/logs/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@90
#SBATCH --time=60

# setup
: "${SLURM_JOB_END_TIME:=$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s 2>/dev/null)}"; export SLURM_JOB_END_TIME
export PYTHONSAFEPATH=1
export PYTHONPATH=/shared/runs/code/0123456789abcdef${PYTHONPATH:+:$PYTHONPATH}

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/runs/20260131-120000-demo-a1b2c3/attempts/1/logs/%j_%t_log.out --output=/shared/runs/20260131-120000-demo-a1b2c3/attempts/1/logs/%j_%N_srun.out --kill-on-bad-exit=1 --distribution=block:block --cpu-bind=none --mem-bind=none --gpu-bind=none /shared/env/bin/python -P -u -m submitit.core._submit /shared/runs/20260131-120000-demo-a1b2c3/attempts/1/logs


# teardown
himori_code=$?
/shared/env/bin/python -P -m launchers.requeue /shared/runs/20260131-120000-demo-a1b2c3
exit $himori_code
#!/bin/bash

# Parameters
#SBATCH --array=0-36%8
#SBATCH --comment=himori:20260131-120000-a1b2c3
#SBATCH --cpus-per-task=2
#SBATCH --hold
#SBATCH --job-name=himori-demo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/sweeps/demo-0123456789ab/batches/20260131-120000-a1b2c3/logs/%A_%a_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@90
#SBATCH --time=30

# setup
: "${SLURM_JOB_END_TIME:=$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s 2>/dev/null)}"; export SLURM_JOB_END_TIME
export PYTHONSAFEPATH=1
export PYTHONPATH=/shared/runs/code/0123456789abcdef${PYTHONPATH:+:$PYTHONPATH}

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/runs/sweeps/demo-0123456789ab/batches/20260131-120000-a1b2c3/logs/%A_%a_%t_log.out --output=/shared/runs/sweeps/demo-0123456789ab/batches/20260131-120000-a1b2c3/logs/%A_%a_%N_srun.out --kill-on-bad-exit=1 --distribution=block:block --cpu-bind=none --mem-bind=none --cpus-per-task=2 /shared/env/bin/python -P -u -m submitit.core._submit /shared/runs/sweeps/demo-0123456789ab/batches/20260131-120000-a1b2c3/logs


# teardown
himori_code=$?
/shared/env/bin/python -P -m launchers.requeue "$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" /shared/runs/sweeps/demo-0123456789ab/batches/20260131-120000-a1b2c3/runs)"
exit $himori_code
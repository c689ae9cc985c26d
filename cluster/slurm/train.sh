#!/usr/bin/env bash
# The coordinator's Slurm job; it asks Slurm for the workers. Submit it from a shared folder:
#   sbatch --export=ALL,CERTIFICATES=keys cluster/slurm/train.sh JOB.toml [options of slurm.py]
# Submitted again after it was killed or timed out, it goes on from the last checkpoint.
#SBATCH --job-name=dmondrian
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail
ulimit -n "$(ulimit -H -n)" # the scheduler has some six files open for each worker

if [ "$#" -lt 1 ]; then
    echo "train.sh: expected a job file, got none: sbatch train.sh JOB.toml [options]" >&2
    exit 2
fi
: "${CERTIFICATES:?expected a shared folder of certificates: dmondrian cluster --certificates-only --folder \"\$HOME/keys\"}"

# Slurm runs a copy of this file; the folder it was submitted from holds the checkout.
here="${SLURM_SUBMIT_DIR:-$(pwd)}"
exec "${PYTHON:-python}" "${SLURM_PY:-$here/cluster/slurm/slurm.py}" --certificates "$CERTIFICATES" "$@"

"""Run a job file on workers that Slurm starts: `python slurm.py JOB.toml --certificates FOLDER`.

The scheduler and the coordinator run here, in the Slurm job of ``train.sh``; each worker is a Slurm
job of one process, by dask-jobqueue. Relies on a folder that all nodes see, for certificates, data
and run. Promises that everything is encrypted, that each worker has a kernel cache of its own, and
that the workers' jobs are cancelled at the end.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import dask
from dask_jobqueue import SLURMCluster
from distributed.security import Security

from dmondrian.cli import main as dmondrian

# As dmondrian sets them for clusters of its own: silent workers are given up after a minute, nobody
# steals steps, which are pinned, and a worker that was killed has two minutes to come back.
CONFIG = {
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.work-stealing": False,
    "distributed.deploy.lost-worker-timeout": "120s",
}
# Two workers never write to one kernel cache; each starts from a copy of a warm one if there is.
PROLOGUE = [
    'export DMONDRIAN_CACHE_DIR="${TMPDIR:-/tmp}/dmondrian-$SLURM_JOB_ID"',
    'if [ -d "${DMONDRIAN_WARM_CACHE:-}" ]; then '
    'cp -r "$DMONDRIAN_WARM_CACHE" "$DMONDRIAN_CACHE_DIR"; fi',
]


def main() -> int:
    """Start the workers, run the command, and cancel them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # dask_jobqueue's exits without a word
    given = arguments()
    folder = given.certificates.absolute()
    ca, cert, key = (str(folder / f"{name}.pem") for name in ("ca", "cert", "key"))
    with dask.config.set(CONFIG), cluster_of(given, ca, cert, key) as cluster:
        if given.job_script:
            sys.stdout.write(cluster.job_script())
            return 0
        cluster.scale(jobs=given.workers)
        keys = {"scheduler": cluster.scheduler_address, "tls_ca": ca, "tls_cert": cert}
        keys["tls_key"] = key
        overrides = (f"--set=cluster.{name}={value}" for name, value in keys.items())
        return dmondrian(["train", str(given.job), *overrides])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job", type=Path, metavar="JOB.toml")
    parser.add_argument(
        "--certificates",
        type=Path,
        required=True,
        help="shared folder of `dmondrian cluster --certificates-only`",
    )
    parser.add_argument("--workers", type=int, default=4, help="Slurm jobs (default: 4)")
    parser.add_argument("--cores", type=int, default=8, help="threads of a worker (default: 8)")
    parser.add_argument("--memory", default="16GB", help="of a worker (default: 16GB)")
    parser.add_argument("--walltime", default="04:00:00", help="of a worker (default: 04:00:00)")
    parser.add_argument("--partition", help="Slurm partition")
    parser.add_argument("--interface", help="network interface that nodes share, such as ib0")
    parser.add_argument("--job-script", action="store_true", help="show a worker's script and stop")
    return parser.parse_args()


def cluster_of(given: argparse.Namespace, ca: str, cert: str, key: str) -> SLURMCluster:
    """Return a cluster without workers."""
    roles = ("client", "scheduler", "worker")
    security = Security(
        require_encryption=True,
        tls_ca_file=ca,
        **{f"tls_{role}_cert": cert for role in roles},
        **{f"tls_{role}_key": key for role in roles},
    )
    return SLURMCluster(
        cores=given.cores,
        processes=1,
        memory=given.memory,
        walltime=given.walltime,
        queue=given.partition,
        interface=given.interface,
        security=security,
        protocol="tls://",
        job_script_prologue=PROLOGUE,
        scheduler_options={"dashboard": False, "dashboard_address": ":0"},
    )


if __name__ == "__main__":
    sys.exit(main())

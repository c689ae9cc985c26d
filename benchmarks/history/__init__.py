"""The few figures that are compared from commit to commit, by asv (../asv.conf.json).

asv imports this package, from the checkout that it is run in, in an environment of its own where
one commit of dmondrian is installed. What is measured is that commit, never the checkout: asv
imports the package without its folder on ``sys.path``, and the checkout's root, which has a
``dmondrian`` of its own, must not get there. So `datasets` is loaded as a file, and
`check_package` refuses where the commit would not be what is measured.

What it is good for: to see that a change cost clearly more, and which commit it was. Figures of
bytes have no noise; those of frozen trees have most, since their times differ more between
processes than within one: to see the noise of a machine, measure a commit against itself, in turns
(``asv continuous COMMIT COMMIT``). Sets are cut, held-out ones included, so that their trees lie in
the caches more than those of `benchmarks.throughput`: rates are not for quoting. Times are the
processor's, so a disk that is waited for does not show; those of fresh processes are the wall
clock's. The oldest commit whose forests can be saved, 633ea55, can be measured in all but frozen
trees.

``DMONDRIAN_HISTORY=tiny`` runs everything on a few hundred rows, to see that it runs.

Relies on nothing that an old commit lacks at import: what it cannot do is left out there, as n/a.
"""

from __future__ import annotations

import os
from pathlib import Path

# As `benchmarks.peers.runner` has it, which cannot be imported from here. Before NumPy is.
for _pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_pool] = "1"
# asv leaves this out where it measures an environment that was there before (--python=same).
_ENVIRONMENT = os.environ.get("ASV_ENV_DIR")
if _ENVIRONMENT is not None:
    # Kernels of commits that nobody will run again go when the environment does.
    os.environ.setdefault("DMONDRIAN_CACHE_DIR", str(Path(_ENVIRONMENT) / "kernels"))


def check_package() -> None:
    """Refuse to measure another dmondrian than the one that asv installed."""
    import dmondrian

    found = Path(dmondrian.__file__).resolve()
    if _ENVIRONMENT is not None and not found.is_relative_to(Path(_ENVIRONMENT).resolve()):
        raise ImportError(f"{found} is not the package that asv installed in {_ENVIRONMENT}")


check_package()

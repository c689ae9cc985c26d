"""Plan of the run in a folder, as far as a job has to take it as it is.

Relies on the chain of plans of a run, and on its checkpoints and those of its parts.
"""

from __future__ import annotations

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.parts import parts_of
from dmondrian.data import Plan
from dmondrian.errors import CheckpointError, CorruptError, NotFoundError


def kept_plan(url: str) -> Plan | None:
    """Return the plan of the run in a folder, up to the files that a checkpoint depends on.

    Appended files with no row in a checkpoint yet may still be changed or removed. None for a new
    folder, or if the first plan has to be repaired.
    """
    try:
        run = Run.open(url)
        stream, chain = run.stream, run.stream.digests()
    except CheckpointError:
        return None  # `Run.create` checks whether the folder can be used
    if chain[-1] is None:
        return None
    try:
        plan = Plan.from_parquet(stream.read())
        learned = max(
            (p for run_or_part in (run, *parts_of(run)) for p in run_or_part.manifests()), default=0
        )
        needed = plan.digest_at(learned)
        # One that is not there was dropped when a later checkpoint did not need it any more.
        is_newest = needed == plan.digest or not stream.has(needed)
        return plan if is_newest else Plan.from_parquet(stream.read(needed))
    except (CorruptError, NotFoundError):
        if len(chain) > 1:
            raise
        return None  # the first plan is made again, and compared

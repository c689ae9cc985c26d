"""Merging: runs of one job over other trees become one run.

Relies on states that depend on tree number and stream alone. Promises that the merged run holds the
blobs of its sources byte for byte, that runs which do not belong together are refused with what
differs, and that a merge that was killed is finished by repeating it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.checkpoint.lease import Lease
from dmondrian.checkpoint.manifest import Manifest, blobs_of
from dmondrian.checkpoint.new_folder import refuse_folder_of_data
from dmondrian.checkpoint.opening import VERSIONS_KEY
from dmondrian.checkpoint.parts import is_whole, open_whole, parts_of
from dmondrian.checkpoint.row_ranges import ROW_PARTS
from dmondrian.checkpoint.run import Run
from dmondrian.checkpoint.summary import total
from dmondrian.ensemble.settings.stored_parameters import follows_stream, learns_jointly
from dmondrian.errors import CheckpointError, ParameterError

# What may differ between runs that belong together.
_OWN = ("format", VERSIONS_KEY, "n_estimators", "shards", "plan", "progressive", "estimator")


def merge(
    urls: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]
) -> tuple[Run, Manifest]:
    """Join runs with other trees of the same parameters, seed and stream.

    Parameters
    ----------
    urls : sequence of str or path
        Runs, those with parts included; a position behind ``@`` is not taken.
    out : str or path
        Folder or URL of the merged run.

    Returns
    -------
    run : Run
    manifest : Manifest
        At the newest position that all have in common. It has no metrics, as those of parts of
        a forest are not those of the forest, but the mean of their calibrations to begin with.

    Raises
    ------
    CheckpointError
        The runs differ in parameters or stream, or have no position in common; or `out` holds
        Parquet files that are not of a run.
    ParameterError
        They share trees, or there are fewer than two.
    FencedError
        Somebody works on the merged run.
    """
    refuse_folder_of_data(out)
    runs = [open_whole(url) for url in urls]
    if len(runs) < 2:
        raise ParameterError(f"got {len(runs)} run to merge; expected two or more")
    sources = [source for run in runs for source in (run, *parts_of(run))]
    for part in sources:
        if part not in runs and not is_whole(part):
            raise CheckpointError(
                f"{part.url} is not finished: finish `dmondrian grow`, or delete it"
            )
    if lagged := [run for run in sources if run.run_json.get("lags") is not None]:
        raise ParameterError(
            f"{lagged[0].url} has lags, and each run writes its rows with them into a folder of "
            "its own: such runs have no stream in common. Train one run of all trees, or add trees "
            "to one of them with `dmondrian grow`"
        )
    for run in sources:  # no two of these merge, however alike they are
        parameters = run.run_json["parameters"]
        if learns_jointly(parameters):
            raise ParameterError(
                f"{run.url} is of {run.run_json['algorithm']}, whose trees are fitted together: "
                "those of other runs were fitted without them"
            )
        if follows_stream(parameters):
            raise ParameterError(
                f"{run.url} follows the stream: what its trees count was learned, row by row, "
                "from their own forecasts alone, not from those of other runs. Train one run of "
                "all trees, or add trees to one of them with `dmondrian grow`"
            )
    _check_alike(sources)
    position = _common_position(sources)
    pairs = sorted(
        (
            (tuple(trees), run, run.manifest(position).shards[number])
            for run in sources
            for number, trees in enumerate(run.run_json["shards"])
        ),
        key=lambda pair: pair[0],
    )
    for (former, a, _), (later, b, _) in pairwise(pairs):
        if later[0] < former[1]:
            raise ParameterError(f"{a.url} and {b.url} share trees from number {later[0]} on")
    n_trees = sum(stop - first for (first, stop), _, _ in pairs)
    about = _asked(sources[0]) | {
        "n_estimators": n_trees,
        "shards": [list(trees) for trees, _, _ in pairs],
        "plan": sources[0].run_json["plan"],
        "progressive": sources[0].run_json["progressive"],
        "estimator": {**sources[0].run_json["estimator"], "n_estimators": n_trees},
    }
    merged = Run.create(out, about, sources[0].stream.read(sources[0].stream.digests()[0]))
    with Lease.take(merged.store) as lease:  # a merge is repeated: somebody may train on by now
        manifest = _fill(merged, sources, [(run, shard) for _, run, shard in pairs], position)
        lease.end("finished")
    return merged, manifest


def _fill(
    merged: Run, sources: list[Run], shards: list[tuple[Run, dict[str, Any]]], position: int
) -> Manifest:
    """Give a run the stream of its sources, and their shards at a position."""
    stream = sources[0].stream
    for before, digest in pairwise(stream.digests()):
        if digest in merged.stream.digests():
            continue  # of a merge before; the run may have been continued since
        stored = stream.read(digest) if stream.has(str(digest)) else None
        merged.stream.lead_to(str(digest), stored, [str(before)])
    merged.stream.note_places(stream.places()[1])
    saved = {}
    for number, (run, shard) in enumerate(shards):
        for digest, n_bytes in blobs_of(shard):
            merged.put_blob(run.get_blob(digest, n_bytes))
        saved[number] = shard
    manifests = [run.manifest(position) for run in sources]
    is_final, plan = all(manifest.final for manifest in manifests), manifests[0].plan
    forest = total([manifest.forest for manifest in manifests])
    metrics = _metrics(manifests)
    return merged.commit(position, saved, metrics, final=is_final, plan=plan, forest=forest)


def _metrics(manifests: list[Manifest]) -> dict[str, Any]:
    """Return what the merged run begins with: the mean of its parts' calibrations, if all have."""
    from dmondrian.uncertainty.temperature_scaling import (
        kind_of,  # without Numba until it is needed
    )

    calibrations = [manifest.metrics.get("calibration") for manifest in manifests]
    if any(part is None for part in calibrations):
        return {}
    kind: Any = kind_of(isinstance(calibrations[0], dict) and "squares" in calibrations[0])
    return {"calibration": kind.between([kind.from_json(part) for part in calibrations]).to_json()}


def _asked(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.run_json.items() if key not in _OWN}


def _without_ranges(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what was asked with the number of row parts, as a job names it, for their ranges."""
    ranges = settings.pop(ROW_PARTS, None)
    return settings if ranges is None else {**settings, "[run] row_parts": len(ranges)}


def _check_alike(sources: list[Run]) -> None:
    first = sources[0]
    for later in sources[1:]:
        lines = document.differences(*(_without_ranges(_asked(run)) for run in (first, later)))
        if first.stream.digests()[-1] != later.stream.digests()[-1]:
            lines.append("stream: other files, or other rows")
        if lines:
            shown = "".join(f"\n  {line[:200]}" for line in lines[:20])
            raise CheckpointError(
                f"{later.url} cannot be merged with {first.url}. These entries differ:{shown}\n"
                "Runs that merge are of one job, one seed and one stream, with other trees: see "
                "first_tree."
            )
    if first.run_json.get("plan") is None:
        raise CheckpointError(f"{first.url} was fitted on arrays: such models cannot be merged")


def _common_position(sources: list[Run]) -> int:
    shared = set(sources[0].manifests()).intersection(*(run.manifests() for run in sources[1:]))
    if not shared:
        raise CheckpointError(
            "the runs have no checkpoint at the same position: finish them, then merge"
        )
    newest = max(run.manifests()[-1] for run in sources)
    if max(shared) < newest:
        warnings.warn(
            f"merged at position {max(shared)}, the newest that all runs have; some have learned "
            f"{newest} rows",
            stacklevel=3,
        )
    return max(shared)

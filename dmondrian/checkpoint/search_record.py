"""Record of a search beside the run that was trained with what it found: rounds and their losses.

Relies on documents that the search wrote, each once. Promises ranks that depend on the losses
alone, and to read them without Dask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.errors import NotFoundError
from dmondrian.store import Store

FOLDER = "search"
"""Of a run's search, in the run's folder."""

ASKED, ROUNDS = "asked.json", "rounds"


def ranking(losses: Mapping[int, float]) -> list[int]:
    """Return the numbers of candidates, the best first.

    Equal losses go to the lower number; one that is no number is the worst.
    """
    worst = math.inf
    return sorted(losses, key=lambda n: (worst if math.isnan(losses[n]) else losses[n], n))


def read_rounds(store: Store, folder: str = "") -> list[dict[str, Any]]:
    """Return the rounds that are over, in order; `folder` ends with "/", if any."""
    names = sorted(store.list(f"{folder}{ROUNDS}"))
    return [document.unseal(store.get(name, document.MAX_BYTES), name) for name in names]


def losses_of(about: Mapping[str, Any]) -> dict[int, float]:
    """Return the losses of a round, by candidate."""
    losses = {int(number): loss for number, loss, _ in about["metrics"]}
    return {number: math.nan if loss is None else float(loss) for number, loss in losses.items()}


def results(rounds: Sequence[Mapping[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return "rows", "loss", "rank" and "metrics" of each of n candidates, by number."""
    results_of_candidates: list[dict[str, Any]] = [{} for _ in range(n)]
    rank = n
    for about in rounds:
        losses, left = losses_of(about), set(about["going_on"])
        for number, _, metrics in about["metrics"]:
            results_of_candidates[number] = {
                "rows": about["rows"],
                "loss": losses[number],
                "rank": 1,
            }
            results_of_candidates[number]["metrics"] = metrics
        for number in reversed([k for k in ranking(losses) if k not in left]):
            results_of_candidates[number]["rank"] = rank
            rank -= 1
    return results_of_candidates


@dataclass(frozen=True)
class StoredSearch:
    """A search as its record has it.

    Attributes
    ----------
    estimators : list of [str, dict]
        Algorithm and parameters of each candidate.
    winner : int or None
        Its number; None if the search is not over.
    winner_settings : dict
        Parameters of the winner that differ among candidates.
    """

    estimators: list[list[Any]]
    winner: int | None
    winner_settings: dict[str, Any]


def stored_search(store: Store) -> StoredSearch | None:
    """Return the search of a run; None where there was none."""
    name = f"{FOLDER}/{ASKED}"
    try:
        request = document.unseal(store.get(name, document.MAX_BYTES), name)
    except NotFoundError:
        return None
    estimators, rounds = list(request["estimators"]), read_rounds(store, f"{FOLDER}/")
    if not rounds or not rounds[-1]["is_last"]:
        return StoredSearch(estimators, None, {})
    winner = int(rounds[-1]["going_on"][0])
    return StoredSearch(estimators, winner, _varied(estimators)[winner])


def _varied(estimators: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the parameters of each candidate that differ among them."""
    candidates = [dict(parameters) for _, parameters in estimators]
    names = list(dict.fromkeys(key for candidate in candidates for key in candidate))
    varied = [
        key for key in names if len({repr(candidate.get(key)) for candidate in candidates}) > 1
    ]
    return [{key: candidate.get(key) for key in varied} for candidate in candidates]


def searched(store: Store) -> dict[str, Any] | None:
    """Return the search of a run: loss, rounds, and candidates with their settings that differ.

    None where there was none, or its first round is not over.
    """
    rounds = read_rounds(store, f"{FOLDER}/")
    if not rounds:
        return None
    name = f"{FOLDER}/{ASKED}"
    request = document.unseal(store.get(name, document.MAX_BYTES), name)
    varied = _varied(request["estimators"])
    candidates = [
        {"settings": settings, **about}
        for settings, about in zip(varied, results(rounds, len(varied)), strict=True)
    ]
    return {
        "loss": rounds[-1]["loss"],
        "rounds": rounds[0]["rounds"],
        "is_over": rounds[-1]["is_last"],
        "candidates": candidates,
    }

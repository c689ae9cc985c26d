"""Manifest: what a run's forest was at one position of its stream, by the digests of its blobs.

Holds no time and no host, so equal states have equal manifests. Promises that what was read is of
the right types and that its digests and numbers are what names in a store may be made of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dmondrian.checkpoint.document import seal, unseal
from dmondrian.checkpoint.summary import Summary
from dmondrian.errors import CorruptError

FORMAT = 1
DELTA_FORMAT = 2
"""Of a manifest of states that are differences: versions that do not know of these refuse it."""

FOLDER = "manifests"
LARGEST_POSITION = 10**18 - 1
# Twelve digits, so that names sort as numbers for any stream that fits a disk.
NAME = re.compile(r"manifests/([0-9]{12,18})\.json")
Blob = tuple[str, int]  # digest and bytes
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """A commit of a run."""

    position: int  # rows of the stream that every tree has learned
    # shard number -> {"digest": sha256 hex, "bytes": int}, and of a difference "base": the same of
    # the whole state that it is the difference from
    shards: dict[int, dict[str, Any]]
    metrics: dict[str, Any] = field(default_factory=dict)  # totals up to position; NaN is None
    parent: int | None = None  # position of the manifest that this one went on from
    plan: str | None = None  # digest of the frozen stream
    final: bool = False  # the end of the stream was reached
    forest: Summary | None = None  # of all trees; None where an earlier version wrote it
    n_since_whole: int = 0  # checkpoints up to this one, since one without differences

    @property
    def name(self) -> str:
        """Object name in the run folder."""
        return manifest_name(self.position)

    @property
    def state(self) -> tuple[int, str | None, dict[int, str]]:
        """The content that makes two manifests the same state, without the way that led there."""
        return self.position, self.plan, {n: s["digest"] for n, s in self.shards.items()}

    @property
    def bases(self) -> set[str]:
        """Digests of the whole states that its states are differences from."""
        return {s["base"]["digest"] for s in self.shards.values() if "base" in s}

    @property
    def blobs(self) -> dict[str, int]:
        """Bytes of all blobs that it needs, by digest."""
        return dict(blob for shard in self.shards.values() for blob in blobs_of(shard))

    @property
    def stored_bytes(self) -> int:
        """Bytes of all blobs that it needs, each as often as a shard is read of it."""
        return sum(size for shard in self.shards.values() for _, size in blobs_of(shard))

    def to_bytes(self) -> bytes:
        """Write the manifest's file; the same for the same content."""
        content = {
            "format": DELTA_FORMAT if self.bases else FORMAT,
            "position": self.position,
            "plan": self.plan,
            "parent": self.parent,
            "shards": {str(number): dict(shard) for number, shard in self.shards.items()},
            "metrics": _finite(self.metrics),
            "final": self.final,
        }
        if self.bases:
            content["n_since_whole"] = self.n_since_whole
        if self.forest is not None:
            content["forest"] = _finite(self.forest.to_json())
        return seal(content)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Manifest:
        """Read a manifest's file and check it.

        Raises
        ------
        CorruptError
            The bytes are damaged, or an entry has another type or range than expected.
        """
        content = unseal(data, name)
        form = content.get("format")
        is_known = type(form) is int and form in (FORMAT, DELTA_FORMAT)
        _expect(is_known, name, "format", form, f"{FORMAT} or {DELTA_FORMAT}")
        position, parent = content.get("position"), content.get("parent")
        plan, shards = content.get("plan"), content.get("shards")
        _expect(_is_count(position), name, "position", position, "a row number")
        is_earlier = parent is None or (_is_count(parent) and parent < position)
        _expect(is_earlier, name, "parent", parent, "an earlier position or null")
        _expect(plan is None or isinstance(plan, str), name, "plan", plan, "a digest")
        _expect(isinstance(shards, dict), name, "shards", shards, "an object")
        _expect(isinstance(content.get("metrics"), dict), name, "metrics", "else", "an object")
        _expect(type(content.get("final")) is bool, name, "final", "else", "true or false")
        n_since = content.get("n_since_whole", 0)
        _expect(_is_count(n_since), name, "n_since_whole", n_since, "a number of checkpoints")
        return cls(
            position=int(position or 0),
            shards=_shards(shards or {}, name),
            metrics=content["metrics"],
            parent=parent,
            plan=plan,
            final=content["final"],
            forest=_forest(content.get("forest"), name),
            n_since_whole=n_since,
        )


def manifest_name(position: int) -> str:
    """Object name of the manifest of a position: ``manifests/000000012345.json``."""
    return f"{FOLDER}/{position:012d}.json"


def manifest_position(name: str) -> int | None:
    """Position in an object name, None when it is no manifest's name."""
    match = NAME.fullmatch(name)
    return int(match[1]) if match and manifest_name(int(match[1])) == name else None


def shard_entry(blob: Blob, base: Blob | None = None) -> dict[str, Any]:
    """Return what a manifest has of a shard, by digest and bytes of its blob and of its base's."""
    entry: dict[str, Any] = {"digest": blob[0], "bytes": blob[1]}
    return entry if base is None else {**entry, "base": shard_entry(base)}


def base_of(shard: Mapping[str, Any]) -> Blob | None:
    """Return digest and bytes of what a shard of a manifest is a difference from, if it is one."""
    base = shard.get("base")
    return None if base is None else (base["digest"], int(base["bytes"]))


def blobs_of(shard: Mapping[str, Any]) -> list[Blob]:
    """Return digest and bytes of the blobs that a shard of a manifest needs, its own one last."""
    base, blob = base_of(shard), (shard["digest"], int(shard["bytes"]))
    return [blob] if base is None else [base, blob]


def is_digest(value: Any) -> bool:
    """Whether a value is a sha256 in lower-case hexadecimal."""
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _shards(shards: dict[str, Any], name: str) -> dict[int, dict[str, Any]]:
    checked = {_number(key, name): _shard(value, name) for key, value in shards.items()}
    return dict(sorted(checked.items()))


def _shard(value: Any, name: str) -> dict[str, Any]:
    is_shard = isinstance(value, dict) and is_digest(value.get("digest"))
    _expect(is_shard and _is_count(value.get("bytes")), name, "shard", value, "digest and bytes")
    shard = {"digest": value["digest"], "bytes": value["bytes"]}
    if "base" in value:
        base = value["base"]
        is_whole = isinstance(base, dict) and "base" not in base
        _expect(is_whole, name, "shard", value, "a base of digest and bytes")
        shard["base"] = _shard(base, name)
    return shard


def _forest(values: Any, name: str) -> Summary | None:
    try:
        return None if values is None else Summary.from_json(values)
    except ValueError as error:
        _expect(False, name, "forest", error, "a summary of its trees")
        return None


def _number(key: str, name: str) -> int:
    _expect(re.fullmatch(r"0|[1-9][0-9]{0,8}", key) is not None, name, "shard", key, "a number")
    return int(key)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_POSITION


def _expect(is_so: bool, name: str, what: str, came: Any, expected: Any) -> None:
    if not is_so:
        raise CorruptError(
            f"{name}: {what} is {str(came)[:80]!r}, expected {expected}. The manifest was not "
            "written by this version of dmondrian or is damaged: use an earlier checkpoint."
        )


def _finite(value: Any) -> Any:
    """Metrics in strict JSON: a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(below) for key, below in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_finite(below) for below in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

"""Run: the folder of one training run, and the only code that knows its layout.

::

    run.json                     what was asked; create-only
    plan.parquet, plans/         the frozen stream, and what was appended; see `stream`
    blobs/<sha256>               the shards' states, named by their content, whole or as the
                                 difference from another one; see `deltas`
    row_parts/                   a run of parts of the rows, until they are merged; see `row_ranges`
    shares/<row>-<row>           what members forecast of these rows; see `kept_shares`
    manifests/<position>.json    the commits; create-only, written last
    attempts/                    hosts and times, which no other object holds; see `attempt_notes`
    alerts.json                  conditions that hold, alerts raised last; see `raised_alerts`
    validation.json              metrics of checkpoints on held-out data; see `held_out`
    lease/, jobs/                who works on it now, what was handed over; see `lease`, `jobs`

Relies on `Store.put_new`. Promises: a manifest that can be read names only blobs that were written
before it; a folder never holds two runs; damage is found when it is read, and repaired when the
same state is written again. Deletes nothing.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dmondrian.checkpoint import document
from dmondrian.checkpoint.attempt_notes import Work, add_note, notes_of, work_of
from dmondrian.checkpoint.held_out import positions
from dmondrian.checkpoint.manifest import Manifest, is_digest, manifest_name
from dmondrian.checkpoint.opening import (
    FORMAT,
    RUN_NAME,
    VERSIONS_KEY,
    mark_deltas,
    pick,
    read_run,
    refuse_other,
    versions,
)
from dmondrian.checkpoint.stream import Stream, put_first
from dmondrian.checkpoint.summary import Summary
from dmondrian.errors import (
    CheckpointError,
    CorruptError,
    FencedError,
    NotFoundError,
    ParameterError,
)
from dmondrian.store import Store, open_store

BLOBS = "blobs"


class Run:
    """A run folder. Made by `Run.create` or `Run.open`; pickles as its address.

    Attributes
    ----------
    url : str
        Address of the folder.
    run_json : dict
        What was asked: parameters, schema, shards, digest of the plan.
    position : int or None
        The checkpoint that the address picked with ``@position``.
    """

    def __init__(self, store: Store, run_json: dict[str, Any], position: int | None = None) -> None:
        self.store = store
        self.run_json = run_json
        self.position = position

    @classmethod
    def create(
        cls,
        url: str | os.PathLike[str] | Store,
        run_json: Mapping[str, Any],
        plan: bytes | None = None,
    ) -> Run:
        """Start a run in a folder, or take up the same run again.

        Parameters
        ----------
        url : str, path-like or Store
            The folder; a local one is created.
        run_json : mapping
            JSON-able. ``format`` and ``created_by`` are filled in.
        plan : bytes or None
            The frozen stream, as Parquet.

        Raises
        ------
        CheckpointError
            The folder holds another run; the message lists the entries that differ. For a folder of
            data see `refuse_folder_of_data`.
        StoreError
            The folder cannot be written, or the store ignores conditional puts.
        """
        store = open_store(url)
        store.probe()
        content = {"format": FORMAT, VERSIONS_KEY: versions(), **run_json}
        data = document.seal(content)
        try:
            store.put_same(RUN_NAME, data)
            stored = document.unseal(data, RUN_NAME)
        except FencedError:
            stored = read_run(store)
            refuse_other(store, stored, document.unseal(data, RUN_NAME))
        if plan is not None:
            put_first(store, plan)
        return cls(store, stored)

    @classmethod
    def open(cls, url: str | os.PathLike[str] | Store) -> Run:
        """Open a run that exists; ``folder@position`` picks one of its checkpoints.

        ``folder@best`` picks the one of the least held-out loss.

        Raises
        ------
        CheckpointError
            There is no run, or no checkpoint at that position.
        CorruptError
            ``run.json`` is damaged.
        """
        if isinstance(url, Store):
            return cls(url, read_run(url))
        store, position = pick(os.fspath(url))
        run = cls(store, read_run(store), position)
        if position is not None and not store.exists(manifest_name(position)):
            raise CheckpointError(
                f"There is no checkpoint at position {position} in {store.url}: expected one of "
                f"{_some(run.manifests())}."
            )
        return run

    @property
    def url(self) -> str:
        """Address of the folder, without the position."""
        return self.store.url

    def __repr__(self) -> str:
        at = "" if self.position is None else f"@{self.position}"
        return f"Run({self.url + at!r})"

    def __reduce__(self) -> tuple[Callable[..., Run], tuple[Store, dict[str, Any], int | None]]:
        return Run, (self.store, self.run_json, self.position)

    @property
    def stream(self) -> Stream:
        """The run's plans."""
        return Stream(self.store, self.run_json.get("plan"))

    def put_blob(self, data: bytes) -> str:
        """Write a shard's state once, under the name of its content.

        A blob that is there with other bytes is damaged, and is replaced by the right ones.

        Returns
        -------
        str
            Its digest: sha256, hexadecimal.
        """
        digest = hashlib.sha256(data).hexdigest()
        name = _blob_name(digest)
        n_bytes = self.store.size(name)
        if n_bytes is not None:
            if n_bytes == len(data) and self.store.get(name) == data:
                return digest
            warnings.warn(f"{name} in {self.url} was damaged and is written again.", stacklevel=2)
        # Unconditional: whoever wins writes the same bytes, and large blobs need parts.
        self.store.put(name, data)
        return digest

    def get_blob(self, digest: str, n_bytes: int | None = None) -> bytes:
        """Read a shard's state and check it against its name.

        Parameters
        ----------
        digest : str
        n_bytes : int or None
            Its size by the manifest, which bounds what is read.

        Raises
        ------
        CorruptError
            The blob is missing, or its bytes are not those of its name.
        """
        if not is_digest(digest):
            raise CorruptError(
                f"{str(digest)[:80]!r} is no digest of a blob: 64 hex digits were expected."
            )
        name = _blob_name(digest)
        try:
            data = self.store.get(name, n_bytes)
        except NotFoundError:
            raise CorruptError(f"{name} is missing in {self.url}. {document.EARLIER}") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptError(
                f"{name} in {self.url} is damaged: its {len(data)} bytes have another sha256 than "
                f"its name. {document.EARLIER}"
            )
        return data

    def peek_blob(self, digest: str, start: int, stop: int) -> bytes:
        """Read some bytes of a shard's state; they are not checked.

        Raises
        ------
        CorruptError
            The blob is missing, or ends before.
        """
        name = _blob_name(digest)
        n_bytes = self.store.size(name)
        if n_bytes is None or n_bytes < stop:
            what = "missing" if n_bytes is None else f"damaged: it has {n_bytes} bytes"
            raise CorruptError(f"{name} in {self.url} is {what}. {document.EARLIER}")
        return self.store.get_range(name, start, stop)

    def commit(
        self,
        position: int,
        shards: Mapping[int, Mapping[str, Any]],
        metrics: Mapping[str, Any] | None = None,
        parent: int | Manifest | None = None,
        final: bool = False,
        plan: str | None = None,
        forest: Summary | None = None,
    ) -> Manifest:
        """Write the manifest of a position; its blobs must be written.

        A manifest with the same state (position, plan, digests) that is there already stands and
        is returned: a run that fell back to its parent comes to the same state by another way.
        A damaged one is replaced. Where either has differences from other states, which depend on
        the way, the states are compared, and one of which a blob is damaged is replaced, unless one
        of the other's is, too.

        Parameters
        ----------
        position : int
            Rows of the stream learned by all shards.
        shards : mapping of int to {"digest", "bytes"}
            And "base", the same of another blob, where it is a difference from that.
        metrics : mapping
            JSON-able totals up to `position`; what is not finite becomes null.
        parent : int, Manifest or None
            The checkpoint that this one went on from.
        final : bool
            The end of the stream was reached.
        plan : str or None
            Digest of the stream, where it is not the run's first.
        forest : Summary or None
            Of the trees of all shards, for those who show the run.

        Raises
        ------
        FencedError
            Another state was committed at this position.
        CorruptError
            Whether it is another state cannot be known: a blob of this one is damaged, or there is
            less memory than the comparison needs. What was there stays.
        ParameterError
            An argument has a wrong type or range.
        """
        before = parent.position if isinstance(parent, Manifest) else parent
        manifest = _checked(
            Manifest(
                position=int(position),
                shards={int(n): dict(shards[n]) for n in sorted(shards)},
                metrics=dict(metrics or {}),
                parent=before,
                plan=self.run_json.get("plan") if plan is None else plan,
                final=bool(final),
                forest=forest,
            )
        )
        if manifest.bases:
            mark_deltas(self.store)
            n_before = parent.n_since_whole if isinstance(parent, Manifest) else 0
            manifest = replace(manifest, n_since_whole=n_before + 1)
        try:
            self.store.put_same(manifest.name, manifest.to_bytes())
        except FencedError as error:
            return self._resolve_race(manifest, error)
        return manifest

    def manifests(self) -> list[int]:
        """Positions of all checkpoints, ascending."""
        return positions(self.store)

    def manifest(self, position: int, verify: bool = False) -> Manifest:
        """Read the manifest of a position, and with `verify` all its blobs.

        Raises
        ------
        CorruptError
            The manifest or one of its blobs is damaged or missing.
        NotFoundError
            There is no such manifest.
        """
        name = manifest_name(position)
        data = self.store.get(name, document.MAX_BYTES)
        manifest = Manifest.from_bytes(data, f"{name} in {self.url}")
        is_own = manifest.plan == self.run_json.get("plan") or (
            manifest.plan in self.stream.digests()
        )
        if manifest.position != position or not is_own:
            raise CorruptError(
                f"{name} in {self.url} is the manifest of position {manifest.position} or of "
                "another plan: it was copied from elsewhere. Remove it."
            )
        if verify and (damage := self._damage_of(manifest)) is not None:
            raise damage
        return manifest

    def latest(self, verify: bool = True) -> Manifest | None:
        """Find the newest checkpoint, or the one that the address picked.

        Parameters
        ----------
        verify : bool
            Read all blobs; when one is damaged or missing, go back to the manifest's parent and
            warn. Without it, only damaged manifests are passed over.

        Returns
        -------
        Manifest or None
            None when there is no checkpoint that can be used.

        Raises
        ------
        CorruptError
            The checkpoint that the address picked is damaged.
        """
        if self.position is not None:
            return self.manifest(self.position, verify)
        return self._newest(self.manifests(), verify)

    def before(self, manifest: Manifest, damage: object) -> Manifest | None:
        """Pass over a checkpoint of which a blob turned out to be damaged; warn.

        Parameters
        ----------
        manifest : Manifest
        damage : object
            What is wrong, as text.

        Returns
        -------
        Manifest or None
            The checkpoint that `latest` would find without it; its blobs are not read.
        """
        _warn_of_passing(manifest.position, damage)
        earlier = [p for p in self.manifests() if p < manifest.position]
        return self._newest(_on_the_way(earlier, manifest.parent), False)

    def _newest(self, positions: list[int], verify: bool) -> Manifest | None:
        """Return the last of some checkpoints that can be used; warn of those passed over."""
        while positions:
            position = positions.pop()
            parent: int | None = None
            try:
                manifest = self.manifest(position)
                parent = manifest.parent
                return self.manifest(position, verify) if verify else manifest
            except (CorruptError, NotFoundError) as error:
                _warn_of_passing(position, error)
            positions = _on_the_way(positions, parent)
        return None

    def attempt(self, info: Mapping[str, Any]) -> str:
        """Note hosts and times of one attempt at this run; returns the attempt's id."""
        return add_note(self.store, info)

    def attempts(self) -> list[dict[str, Any]]:
        """Return what the newest attempts noted when they ended; a damaged note is left out."""
        return notes_of(self.store)

    def work(self) -> Work | None:
        """Return what all attempts that ended add up to; None where none is noted."""
        return work_of(self.store)

    def _resolve_race(self, new: Manifest, error: FencedError) -> Manifest:
        try:
            there = self.manifest(new.position)
        except CorruptError:
            warnings.warn(
                f"{new.name} in {self.url} was damaged and is written again.", stacklevel=3
            )
            self.store.put(new.name, new.to_bytes())
            return new
        if there.state == new.state:
            return there
        if there.bases or new.bases:
            damage = self._damage_of(there)
            if damage is not None and self._damage_of(new) is None:
                warnings.warn(
                    f"{new.name} in {self.url} needs what is damaged and is written again: "
                    f"{damage}",
                    stacklevel=3,
                )
                self.store.put(new.name, new.to_bytes())
                return new
            if self._is_same(new, there):
                return there
        raise FencedError(
            f"Position {new.position} of {self.url} was committed with another state: another "
            "writer uses this run, or it was made by another version. Stop the other writer, or "
            "choose another folder."
        ) from error

    def _damage_of(self, manifest: Manifest) -> CorruptError | None:
        """Return what is wrong with the blobs that a manifest needs; None if nothing is."""
        try:
            for digest, n_bytes in manifest.blobs.items():
                self.get_blob(digest, n_bytes)
        except CorruptError as error:
            return error
        return None

    def _is_same(self, new: Manifest, there: Manifest) -> bool:
        """Whether two manifests are of the same states, however these are written.

        Raises
        ------
        CorruptError
            A state cannot be read, or needs more memory than there is.
        """
        from dmondrian.checkpoint.deltas import are_same

        if (new.position, new.plan) != (there.position, there.plan):
            return False
        return new.shards.keys() == there.shards.keys() and all(
            shard["digest"] == there.shards[n]["digest"]
            or are_same(self.get_blob, there.shards[n], shard)
            for n, shard in new.shards.items()
        )


def _warn_of_passing(position: int, damage: object) -> None:
    warnings.warn(f"The checkpoint at position {position} is passed over: {damage}", stacklevel=4)


def _on_the_way(positions: list[int], parent: int | None) -> list[int]:
    """Return positions up to a parent: states between were made on the way of another attempt."""
    return [p for p in positions if p <= parent] if parent in positions else positions


def _checked(manifest: Manifest) -> Manifest:
    try:
        return Manifest.from_bytes(manifest.to_bytes(), manifest.name)
    except CorruptError as error:
        raise ParameterError(f"This cannot be committed: {error}") from error


def _blob_name(digest: str) -> str:
    return f"{BLOBS}/{digest}"


def _some(positions: list[int]) -> str:
    if not positions:
        return "(none yet)"
    shown = [str(p) for p in positions]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:2], "...", *shown[-5:]])

"""Stream: the plans of one run, each the one before and what was appended to it.

::

    plan.parquet              the first; create-only, its digest is in run.json
    plans/000001.json         which plan came next, and after which
    plans/<digest>.parquet    that plan as a whole, while it is the newest or a checkpoint needs it
    places.json               where the run was, and where its files are, when it was last used;
                              which files that were learned were gone or changed then
    batches/0000000001.parquet  rows of a source in Python that were written to be learned
    _lags/000000000000000.parquet  rows with lags, from a position of the stream on

Relies on one writer at a time (see `lease`). Promises that the plans are a chain at any moment, so
that a checkpoint of any of them is a checkpoint of the newest; that a link is replaced only while
no checkpoint lies behind it. Whether one plan really begins with the other is for the caller to
know.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard

from dmondrian.checkpoint import document
from dmondrian.checkpoint.manifest import FOLDER as MANIFESTS
from dmondrian.checkpoint.manifest import Manifest, is_digest, manifest_position
from dmondrian.errors import CorruptError, FencedError, NotFoundError
from dmondrian.store import ExistsError, Store

PLAN_NAME = "plan.parquet"
PLACES_NAME = "places.json"
FOLDER = "plans"
BATCHES = "batches"
LAGS = "_lags"
PARQUET_MAGIC = b"PAR1"
# A plan lists row groups: a million of them stay below this many bytes.
MAX_PLAN_BYTES = 2**30
_LINK = re.compile(rf"{FOLDER}/([0-9]{{6}})\.json")


# Tag, plan and the plan before it by address of the run and name of the link: a run that is
# continued often has many.
_links: dict[tuple[str, str], tuple[str, Any, Any]] = {}
_MOST_LINKS = 2**16


def put_first(store: Store, plan: bytes) -> None:
    """Freeze the first plan; run.json has its digest, so the bytes that are there may stand."""
    try:
        store.put_new(PLAN_NAME, plan)
        return
    except ExistsError:
        there = store.get(PLAN_NAME, MAX_PLAN_BYTES)
    is_whole = there[:4] == there[-4:] == PARQUET_MAGIC
    if not is_whole and there != plan:
        warnings.warn(f"{PLAN_NAME} in {store.url} was damaged and is written again.", stacklevel=3)
        store.put(PLAN_NAME, plan)


class Stream:
    """The chain of plans.

    Parameters
    ----------
    store : Store
        Of the run's folder.
    first : str or None
        Digest of the first plan; None for a model that has no stream.
    """

    def __init__(self, store: Store, first: str | None) -> None:
        self._store = store
        self._first = first

    def digests(self) -> list[str | None]:
        """Digests of all plans, oldest first.

        Raises
        ------
        CorruptError
            A link is damaged, or does not follow the one before.
        """
        chain = [self._first]
        names = {
            name: tag for name, tag in self._store.tags(FOLDER).items() if _LINK.fullmatch(name)
        }
        for number, (name, tag) in enumerate(names.items(), start=1):
            where = f"{name} in {self._store.url}"
            link = self._link(name, tag, where)
            _, plan, after = link
            if name != _link_name(number) or after != chain[-1] or not is_digest(plan):
                raise CorruptError(
                    f"{where} does not follow the plan {chain[-1]}: a plan in between is missing, "
                    f"or it was copied from elsewhere. {document.EARLIER}"
                )
            chain.append(plan)
        return chain

    def _link(self, name: str, tag: str, where: str) -> tuple[str, Any, Any]:
        """Return tag, plan and plan before of a link, read once as long as its bytes are the same.

        What is stored may be no digest.
        """
        key = (self._store.url, name)
        link = _links.get(key)
        if link is None or not tag or link[0] != tag:
            stored = document.unseal(self._store.get(name, document.MAX_BYTES), where)
            link = (tag, stored.get("plan"), stored.get("after"))
            if len(_links) >= _MOST_LINKS:
                _links.clear()
            _links[key] = link
        return link

    def read(self, digest: str | None = None) -> bytes:
        """Read a plan of the chain, the newest by default.

        Raises
        ------
        NotFoundError
            There is none, such as in a model saved by ``save``.
        """
        digest = self.digests()[-1] if digest is None else digest
        if digest == self._first:
            return self._store.get(PLAN_NAME, MAX_PLAN_BYTES)
        try:
            return self._store.get(_plan_name(digest), MAX_PLAN_BYTES)
        except NotFoundError:
            raise CorruptError(
                f"{_plan_name(digest)} is missing in {self._store.url}. {document.EARLIER}"
            ) from None

    def places(self) -> tuple[str | None, dict[str, tuple[str, str]]]:
        """Where the run and its data were when it was last used.

        Returns
        -------
        home : str or None
            Address of the run; None where an earlier version wrote it.
        places : dict of str to (str, str)
            Uri of a file in the plan to its uri and stamp, of files that are elsewhere than there.

        Raises
        ------
        CorruptError
            What is stored is damaged.
        """
        where = f"{PLACES_NAME} in {self._store.url}"
        stored = self._stored_places()
        if stored is None:
            return None, {}
        home, places = stored.get("run"), stored.get("files")
        if not isinstance(home, str) or not _are_places(places):
            raise CorruptError(f"{where} does not map files to places. Delete it.")
        return home, {uri: (place[0], place[1]) for uri, place in places.items()}

    def notes(self) -> list[str]:
        """Return notes on files that were learned, gone or changed when the run was last used.

        Raises
        ------
        CorruptError
            What is stored is damaged.
        """
        notes = (self._stored_places() or {}).get("notes", [])
        if not (isinstance(notes, list) and all(isinstance(note, str) for note in notes)):
            raise CorruptError(f"{PLACES_NAME} in {self._store.url} has no texts. Delete it.")
        return notes

    def note_places(self, places: Mapping[str, tuple[str, str]], notes: Sequence[str] = ()) -> None:
        """Keep where the run and its data are now; as `places` and `notes` return them."""
        if not self.has_noted(places, notes):
            self._store.put(PLACES_NAME, self._sealed(places, notes))

    def has_noted(self, places: Mapping[str, tuple[str, str]], notes: Sequence[str] = ()) -> bool:
        """Whether just this is kept: the run is here, and its data are at these places."""
        try:
            return self._store.get(PLACES_NAME, document.MAX_BYTES) == self._sealed(places, notes)
        except (NotFoundError, CorruptError):
            return False

    def _sealed(self, places: Mapping[str, tuple[str, str]], notes: Sequence[str]) -> bytes:
        noted: dict[str, Any] = {"run": self._store.url}
        noted["files"] = {uri: [*now] for uri, now in places.items()}
        if notes:
            noted["notes"] = [*notes]
        return document.seal(noted)

    def _stored_places(self) -> dict[str, Any] | None:
        try:
            data = self._store.get(PLACES_NAME, document.MAX_BYTES)
        except NotFoundError:
            return None
        return document.unseal(data, f"{PLACES_NAME} in {self._store.url}", "Delete it.")

    def has(self, digest: str) -> bool:
        """Return whether a plan of the chain is still there as a whole."""
        return self._store.exists(PLAN_NAME if digest == self._first else _plan_name(digest))

    def drop(self, keep: Collection[str | None]) -> None:
        """Delete plans but the first, the newest and those to keep; their links stay.

        Each plan begins with all of those before it, so a run that is continued often would hold
        the names of its first files once for each time.
        """
        chain = self.digests()
        spare = {_plan_name(digest) for digest in chain[1:-1] if digest not in keep}
        self._store.delete(sorted(spare.intersection(self._store.list(FOLDER))))

    def lead_to(self, digest: str, plan: bytes | None, earlier: Collection[str]) -> None:
        """Make a plan the newest of the chain; links to plans that it does not continue go.

        Parameters
        ----------
        digest : str
        plan : bytes or None
            None of one that is not kept, because others follow.
        earlier : collection of str
            Digests of the plans that it continues.

        Raises
        ------
        CorruptError
            The chain has none of these.
        FencedError
            A checkpoint lies behind a link that would go: another process continued the run since
            the plan was made. Nothing is written.
        """
        chain = self.digests()
        if digest == chain[-1]:
            return
        known = [k for k, one in enumerate(chain) if one == digest or one in earlier]
        if not known:
            raise CorruptError(f"{self._store.url} has another stream than the plan {digest}")
        self._refuse_to_drop(chain[known[-1] + 1 :])
        for number in range(len(chain) - 1, known[-1], -1):
            self._store.delete(_link_name(number))
        if chain[known[-1]] != digest:
            if plan is not None:
                self._store.put(_plan_name(digest), plan)
            link = document.seal({"plan": digest, "after": chain[known[-1]]})
            self._store.put_same(_link_name(known[-1] + 1), link)

    def _refuse_to_drop(self, plans: Sequence[str | None]) -> None:
        """Raise FencedError if there is a checkpoint of one of some plans."""
        for name in self._store.list(MANIFESTS) if plans else ():
            position = manifest_position(name)
            if position is None:
                continue
            try:
                manifest = Manifest.from_bytes(self._store.get(name, document.MAX_BYTES), name)
            except (CorruptError, NotFoundError):
                continue  # no run can go on from it
            if manifest.plan in plans:
                raise FencedError(
                    f"another process has continued {self._store.url} since this one looked at its "
                    f"data: the checkpoint at row {position:,} has rows that this one did not know "
                    "of. Nothing was changed: run the same command again to go on from there"
                )


def _are_places(places: object) -> TypeGuard[dict[str, list[str]]]:
    return isinstance(places, dict) and all(
        isinstance(place, list) and [type(text) for text in place] == [str, str]
        for place in places.values()
    )


def _link_name(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"


def _plan_name(digest: str | None) -> str:
    return f"{FOLDER}/{digest}.parquet"

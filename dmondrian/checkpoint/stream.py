"""Stream: the plans of one run, each the one before and what was appended to it.

::

    plan.parquet              the first; create-only, its digest is in run.json
    plans/000001.json         which plan came next, and after which; or, of a run that was continued
                              often, all plans up to here that a checkpoint is of
    plans/<digest>.parquet    that plan as a whole, while it is the newest or a checkpoint needs it
    places.json               where the run was, and where its files are, when it was last used;
                              which files that were learned were gone or changed then
    batches/0000000001.parquet  rows of a source in Python that were written to be learned
    _lags/000000000000000.parquet  rows with lags, from a position of the stream on
    stream/part-000000.parquet  a partition of a Dask collection

Relies on one writer at a time (see `lease`). Promises that the plans are a chain at any moment, so
that a checkpoint of any of them is a checkpoint of the newest; that a link is replaced only while
no checkpoint lies behind it; and that there are few links, however often a run is continued: the
newest link that has all plans begins the chain anew, and links of lower numbers, which are deleted
after it was written, count no more. Numbers only rise, so that a writer that was overtaken finds
its number taken, or a higher one. That one plan begins with the other is not checked here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from dmondrian.checkpoint import document
from dmondrian.checkpoint.manifest import FOLDER as MANIFESTS
from dmondrian.checkpoint.manifest import Manifest, is_digest, manifest_position
from dmondrian.checkpoint.opening import mark_condensed
from dmondrian.errors import CorruptError, FencedError, NotFoundError
from dmondrian.store import ExistsError, Store

PLAN_NAME = "plan.parquet"
PLACES_NAME = "places.json"
FOLDER = "plans"
BATCHES = "batches"
BATCHES_NOTE = b"dmondrian.batches"  # metadata of its files: the rows of each one so far, and more
LAGS = "_lags"
STAGED = "stream"
PARQUET_MAGIC = b"PAR1"
# A plan lists row groups: a million of them stay below this many bytes.
MAX_PLAN_BYTES = 2**30
MOST_LINKS = 64
"""Links behind which the chain of plans begins anew with one that has all plans."""

_LINK = re.compile(rf"{FOLDER}/([0-9]{{6,18}})\.json")


class _Link(NamedTuple):
    """Content of a link between plans, unchecked: it may be anything."""

    tag: str
    plan: Any
    after: Any
    whole: Any  # all plans up to this one; None of a link that has one plan


class _Step(NamedTuple):
    """A plan of the chain, and the number of the link that has it; 0 of the first one."""

    digest: str | None
    number: int


# By address of the run and name of the link: each look at a run asks for the chain.
_links: dict[tuple[str, str], _Link] = {}
_MOST_KNOWN = 2**16


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
        """Digests of all plans, oldest first; of a condensed chain those that checkpoints are of.

        The first and the newest one are always there.

        Raises
        ------
        CorruptError
            A link is damaged, or does not follow the one before.
        """
        return [step.digest for step in self._chain()]

    def _chain(self) -> list[_Step]:
        """Return the plans and their links; read again if links came or went meanwhile."""
        tags = self._tags()
        while True:
            try:
                return self._read_chain(tags)
            except (CorruptError, NotFoundError):
                now = self._tags()
                if now == tags:
                    raise
                tags = now

    def _tags(self) -> dict[int, str]:
        """Return the tags of all links by their numbers, ascending."""
        tags = {
            int(match[1]): tag
            for name, tag in self._store.tags(FOLDER).items()
            if (match := _LINK.fullmatch(name)) and name == _link_name(int(match[1]))
        }
        return dict(sorted(tags.items()))

    def _read_chain(self, tags: Mapping[int, str]) -> list[_Step]:
        links: list[tuple[int, _Link]] = []
        for number in sorted(tags, reverse=True):
            links.append((number, self._link(number, tags[number])))
            if links[-1][1].whole is not None:
                break
        chain = [_Step(self._first, 0)]
        for number, link in reversed(links):
            where = f"{_link_name(number)} in {self._store.url}"
            if link.whole is not None:
                if not self._is_whole(link):
                    raise CorruptError(f"{where} has no plans of this run. {document.EARLIER}")
                chain = [_Step(digest, number) for digest in link.whole]
                continue
            last = chain[-1]
            if (number, link.after) != (last.number + 1, last.digest) or not is_digest(link.plan):
                raise CorruptError(
                    f"{where} does not follow the plan {last.digest}: a plan in between is "
                    f"missing, or it was copied from elsewhere. {document.EARLIER}"
                )
            chain.append(_Step(link.plan, number))
        return chain

    def _is_whole(self, link: _Link) -> bool:
        """Return whether what a link has as all plans may be these."""
        plans = link.whole
        if not isinstance(plans, list) or not plans or not all(map(is_digest, plans)):
            return False
        return bool(plans[0] == self._first and plans[-1] == link.plan)

    def _link(self, number: int, tag: str) -> _Link:
        """Return a link, read once as long as its bytes are the same."""
        name = _link_name(number)
        key = (self._store.url, name)
        link = _links.get(key)
        if link is None or not tag or link.tag != tag:
            data = self._store.get(name, document.MAX_BYTES)
            stored = document.unseal(data, f"{name} in {self._store.url}")
            link = _Link(tag, stored.get("plan"), stored.get("after"), stored.get("plans"))
            if len(_links) >= _MOST_KNOWN:
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
        """Whether `note_places` would change nothing: run and data are where they were."""
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
        the names of its first files once for each time. Where there are `MOST_LINKS` links, these
        are condensed to one, of the plans that stay and those that checkpoints are of.
        """
        chain = self._chain()
        spare = {_plan_name(step.digest) for step in chain[1:-1] if step.digest not in keep}
        self._store.delete(sorted(spare.intersection(self._store.list(FOLDER))))
        begin = chain[0].number  # of the link that has all plans; 0 without one
        if chain[-1].number - begin >= MOST_LINKS:
            needed = self._needed()
            if needed is not None:
                kept = [step.digest for step in chain[1:-1] if step.digest in needed.union(keep)]
                plans = [chain[0].digest, *kept, chain[-1].digest]
                self._begin_anew(chain[-1].number + 1, plans)
                return
        self._delete_before(begin)  # what a process that was killed has left

    def _begin_anew(self, number: int, plans: Sequence[str | None]) -> None:
        """Write a link that has all plans, and delete those before it, and what no link has.

        A process may have been killed between a plan and its link, and its plan is deleted too. A
        process that writes a link now finds the number taken, so no such plan gets its link later.
        """
        there = self._store.list(FOLDER)
        mark_condensed(self._store)
        link = document.seal({"plan": plans[-1], "plans": [*plans]})
        self._store.put_same(_link_name(number), link)
        self._delete_before(number)
        known = {_plan_name(digest) for digest in plans}
        self._store.delete([n for n in there if n.endswith(".parquet") and n not in known])

    def _delete_before(self, number: int) -> None:
        self._store.delete(_link_name(link) for link in self._tags() if link < number)

    def _needed(self) -> set[str | None] | None:
        """Return the plans that checkpoints are of; None if one of these cannot be read."""
        needed: set[str | None] = set()
        for _, manifest in self._manifests():
            if manifest is None:
                return None
            needed.add(manifest.plan)
        return needed

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
        chain = self._chain()
        if digest == chain[-1].digest:
            return
        known = [
            k for k, step in enumerate(chain) if step.digest == digest or step.digest in earlier
        ]
        if not known:
            raise CorruptError(f"{self._store.url} has another stream than the plan {digest}")
        kept, dropped = chain[: known[-1] + 1], chain[known[-1] + 1 :]
        self._refuse_to_drop([step.digest for step in dropped])
        is_new, last = kept[-1].digest != digest, kept[-1].number
        if is_new and plan is not None:
            self._store.put(_plan_name(digest), plan)
        if dropped and dropped[0].number == last:  # one link has those that stay and those that go
            plans = [*(step.digest for step in kept), *([digest] if is_new else [])]
            self._begin_anew(chain[-1].number + 1, plans)
            return
        for step in reversed(dropped):
            self._store.delete(_link_name(step.number))
        if is_new:
            link = document.seal({"plan": digest, "after": kept[-1].digest})
            self._store.put_same(_link_name(last + 1), link)
            if max(self._tags()) > last + 1:  # it was free again: those up to it were condensed
                raise FencedError(
                    f"another writer uses {self._store.url}: its stream went on while this process "
                    "stood still. Run the same command again to go on from there"
                )

    def _refuse_to_drop(self, plans: Sequence[str | None]) -> None:
        """Raise FencedError if there is a checkpoint of one of some plans."""
        for position, manifest in self._manifests() if plans else ():
            if manifest is not None and manifest.plan in plans:
                raise FencedError(
                    f"another process has continued {self._store.url} since this one looked at its "
                    f"data: the checkpoint at row {position:,} has rows that this one did not know "
                    "of. Nothing was changed: run the same command again to go on from there"
                )

    def _manifests(self) -> Iterator[tuple[int, Manifest | None]]:
        """Yield the positions and manifests of checkpoints; None of one that cannot be read."""
        for name in self._store.list(MANIFESTS):
            position = manifest_position(name)
            if position is None:
                continue
            try:
                data = self._store.get(name, document.MAX_BYTES)
                yield position, Manifest.from_bytes(data, name)
            except (CorruptError, NotFoundError):
                yield position, None  # no run can go on from it


def _are_places(places: object) -> TypeGuard[dict[str, list[str]]]:
    return isinstance(places, dict) and all(
        isinstance(place, list) and [type(text) for text in place] == [str, str]
        for place in places.values()
    )


def _link_name(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"


def _plan_name(digest: str | None) -> str:
    return f"{FOLDER}/{digest}.parquet"

"""The page of the benchmark of drift: tables of losses, differences to the best peer, aims.

Everything on it is computed from records, the verdicts too; an aim whose records are not there
names what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.drift.blocks import BLOCK, FLOOR, Difference, difference
from benchmarks.drift.learners import BASELINE, LEARNERS, OWN, PEER, is_asked
from benchmarks.drift.picture import NAME
from benchmarks.drift.streams import ARRIVALS, STREAMS, Arrival
from benchmarks.pages import Number, Page, runs_of, single
from benchmarks.peers.build import RECIPES
from benchmarks.peers.runner import ENVIRONMENTS
from benchmarks.records import MACHINE, Records, table
from dmondrian.drift.waiting_rows import LONGEST_ADVISED

AT_ONCE = ARRIVALS[0]
OURS, FEW, BOOSTED, SCALED = "AMF follow 10", "AMF follow 4", "AMF boosted 10", "AMF scaled 10"
SOON = tuple(name for name, its in LEARNERS.items() if its.most_waiting is not None)
FOLLOWING = (OURS, FEW, BOOSTED, SCALED, *SOON)  # the aims are those of the first
PLAIN, CALIBRATED, RIVAL = "AMF plain 10", "AMF calibrated 10", "CapyMOA ARF 10"

COSTS = (
    (
        "cpu_seconds",
        "Processor seconds",
        "To forecast and learn all rows, one at a time, all threads of the process, compilers of"
        " Java among them; reading, and a first run on some rows, are left out. Other processes may"
        " have had the machine as well: compare what one run measured.",
        ".1f",
    ),
    (
        "calls_cpu_seconds",
        "Processor seconds in calls of many rows",
        "To forecast each row just before it is learned as runs do, in calls of many rows, with the"
        " settings of the first row; peers have no such calls. Forecasts of AMF follow are these.",
        ".1f",
    ),
    (
        "peak_mib",
        "Memory",
        "MiB at most beyond those before the stream. What Java leaves to collect counts; its heap"
        " was held to 2 GiB.",
        ",.0f",
    ),
)

Cells = dict[tuple[Arrival, str, str], dict[str, Any]]
"""Records by arrival of labels, stream and learner; all of a stream are of the same rows."""


def cells_of(records: Iterable[dict[str, Any]]) -> Cells:
    """Return the records of the longest run of each stream."""
    found = list(records)
    rows = {s: max((r["rows"] for r in found if r["stream"] == s), default=0) for s in STREAMS}
    kept = [r for r in found if r["rows"] == rows.get(r["stream"])]
    return {(arrival_of(r), r["stream"], r["learner"]): r for r in kept}


def arrival_of(record: dict[str, Any]) -> Arrival:
    """Return when the labels of a record were known."""
    return Arrival(record["delay"], record["in_blocks"])


def learners_in(cells: Cells, *kinds: str) -> list[str]:
    """Return the learners of these kinds that have records, in the order of their table."""
    there = {learner for _, _, learner in cells}
    return [name for name, its in LEARNERS.items() if its.kind in kinds and name in there]


def streams_in(cells: Cells, at: Arrival, drifts: bool | None = None) -> list[str]:
    """Return the streams with records at an arrival, in the order of their table."""
    there = {stream for when, stream, _ in cells if when == at}
    return [s for s in STREAMS if s in there and drifts in (None, STREAMS[s].drifts)]


def shown(stream: str) -> str:
    """Return a stream's name, with what it is marked by."""
    name = f"{stream} *" if STREAMS[stream].untouched else stream
    return name if STREAMS[stream].drifts else f"{name} (stationary)"


def best(cells: Cells, at: Arrival, stream: str, names: Sequence[str]) -> str | None:
    """Return which of these learners has the lowest log loss."""
    there = [name for name in names if (at, stream, name) in cells]
    return min(there, key=lambda name: cells[at, stream, name]["log_loss"], default=None)


def losses(cells: Cells, at: Arrival) -> str:
    """Return a table: log loss and accuracy, a row per stream."""
    names = learners_in(cells, OWN, PEER, BASELINE)
    names = [n for n in names if any((at, s, n) in cells for s in STREAMS)]
    rows = []
    for stream in streams_in(cells, at):
        lowest = best(cells, at, stream, names)
        own = [cells.get((at, stream, name)) for name in names]
        texts = [r and f"{r['log_loss']:.3f} / {100 * r['accuracy']:.1f}" for r in own]
        marked = [
            f"**{text}**" if name == lowest else text
            for name, text in zip(names, texts, strict=True)
        ]
        rows.append([shown(stream), f"{next(r for r in own if r)['rows']:,}", *marked])
    return table(["stream", "rows", *names], rows)


def differences(cells: Cells, at: Arrival) -> str | None:
    """Return a table: the log loss of this package's learners less that of the best peer."""
    own, peers = learners_in(cells, OWN), learners_in(cells, PEER)
    rows = []
    for stream in streams_in(cells, at):
        peer = best(cells, at, stream, peers)
        if peer is None:
            continue
        each = [to(cells, at, stream, name, peer) for name in own]
        texts = [d and f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})" for d in each]
        loss = f"{cells[at, stream, peer]['log_loss']:.3f}"
        rows.append([shown(stream), f"{peer}, {loss}", *texts])
    return table(["stream", "best peer, its loss", *own], rows) if own and rows else None


def to(cells: Cells, at: Arrival, stream: str, name: str, other: str) -> Difference | None:
    """Return the difference of two learners' losses, block by block, if both were run."""
    both = [cells.get((at, stream, one)) for one in (name, other)]
    if not all(both):
        return None
    return difference(*(record["block_losses"] for record in both if record))


def costs(cells: Cells, key: str, form: str, at: Arrival = AT_ONCE) -> str | None:
    """Return a table of processor seconds or of memory, a row per stream, if there are any."""
    names = [
        name
        for name in learners_in(cells, OWN, PEER)
        if any(key in cells.get((at, stream, name), {}) for stream in STREAMS)
    ]
    rows = []
    for stream in streams_in(cells, at):
        own = [cells.get((at, stream, name), {}).get(key) for name in names]
        rows.append([shown(stream), *(None if v is None else format(v, form) for v in own)])
    return table(["stream", *names], rows) if names else None


def aims(cells: Cells) -> list[list[str]]:
    """Return what was aimed at, what is so, and the verdict, a row for each aim."""
    shares = {AT_ONCE: 0.9, Arrival(64): 0.75, Arrival(1024): 0.75}
    measured = {at for at, _, _ in cells}
    late = [Arrival(at.delay, in_blocks=True) for at in shares if at != AT_ONCE]
    shares |= {at: 0.75 for at in late if at in measured}
    rows = []
    for at, share in shares.items():
        others = [name for name in FOLLOWING[2:] if any((at, s, name) in cells for s in STREAMS)]
        rows += [lowest(cells, at, share, name) for name in (OURS, *others)]
    title = "stationary: log loss at most 1.01 of calibrated AMF's"
    for name in (OURS, BOOSTED, SCALED):
        if name in learners_in(cells, OWN):
            rows.append(ratio(cells, title, CALIBRATED, "log_loss", 1.01, False, name))
    title = "electricity, all rows: accuracy at least 0.93"
    ours = cells.get((AT_ONCE, "electricity", OURS))
    if ours is None or ours["rows"] < STREAMS["electricity"].rows:
        rows.append([title, f"no record of {OURS} on all rows", "open"])
    else:
        rows.append([title, f"{ours['accuracy']:.4f}", verdict(ours["accuracy"] >= 0.93)])
    for title, other, most in (
        ("processor time, of calls, at most 6 times that of plain AMF", PLAIN, 6.0),
        ("processor time, of calls, below that of CapyMOA's ARF", RIVAL, 1.0),
    ):
        rows.append(ratio(cells, title, other, "cpu_seconds", most))
    return rows


def cost(cells: Cells, stream: str, name: str, key: str) -> float:
    """Return a value of a record; seconds are those of calls of many rows, where there are."""
    record = cells[AT_ONCE, stream, name]
    value: float = record.get(f"calls_{key}") or record[key]
    return value


def lowest(cells: Cells, at: Arrival, share: float, name: str = OURS) -> list[str]:
    """Return the row of an aim: the lowest log loss of all on a share of the drifting streams."""
    title = f"lowest log loss on {100 * share:.0f} % of the drifting streams, {at}"
    title += f": {name}" * (name != OURS)
    streams = [s for s in streams_in(cells, at, drifts=True) if (at, s, name) in cells]
    others = [name for name in learners_in(cells, OWN, PEER, BASELINE) if name not in FOLLOWING]
    peers = learners_in(cells, PEER)
    streams = [s for s in streams if best(cells, at, s, peers)]
    if not streams:
        return [title, f"no stream with records of {name} and of a peer", "open"]
    won = [s for s in streams if best(cells, at, s, [name, *others]) == name]
    learners = [other for other in others if LEARNERS[other].kind != BASELINE]
    ahead = sum(best(cells, at, s, [name, *learners]) == name for s in streams)
    clear = [s for s in streams if is_below(cells, at, s, name, best(cells, at, s, others))]
    fresh = [s for s in streams if STREAMS[s].untouched]
    kept = f"{sum(s in won for s in fresh)} of {len(fresh)} untouched"
    is_whole = len(streams) == sum(stream.drifts for stream in STREAMS.values())
    text = f"{len(won)} of {len(streams)}, {ahead} without the baselines, {kept}"
    text += f"; interval below 0 on {len(clear)}"
    met = verdict(len(won) >= share * len(streams))
    return [title, text, met if is_whole else f"{met} so far"]


def is_below(cells: Cells, at: Arrival, stream: str, name: str, other: str | None) -> bool:
    """Whether the whole interval of the difference to another learner is below 0."""
    found = to(cells, at, stream, name, other) if other else None
    return found is not None and found.high < 0.0


def ratio(
    cells: Cells,
    title: str,
    other: str,
    key: str,
    most: float,
    drifts: bool | None = None,
    name: str = OURS,
) -> list[str]:
    """Return the row of an aim: at most a multiple of another learner's value, on every stream."""
    title += f": {name}" * (name != OURS)
    streams = [
        s
        for s in streams_in(cells, AT_ONCE, drifts)
        if (AT_ONCE, s, name) in cells and (AT_ONCE, s, other) in cells
    ]
    if not streams:
        return [title, f"no stream with records of {name} and {other}", "open"]
    each = {s: cost(cells, s, name, key) / cost(cells, s, other, key) for s in streams}
    worst = max(each, key=each.__getitem__)
    text = f"at most {each[worst]:.2f} times, on {worst}; {len(streams)} streams"
    is_whole = len(streams) == sum(drifts in (None, its.drifts) for its in STREAMS.values())
    met = verdict(each[worst] <= most)
    return [title, text, met if is_whole else f"{met} so far"]


def verdict(is_met: bool) -> str:
    """Return "met" or "missed"."""
    return "met" if is_met else "missed"


def streams_won(name: str) -> Callable[[Records], Number]:
    """Return on how many drifting streams no other learner has as low a log loss, labels at once.

    Those of this package that follow the stream do not count among the others.
    """

    def find(records: Records) -> Number:
        cells = cells_of(records)
        others = learners_in(cells, OWN, PEER, BASELINE)
        others = [other for other in others if other not in FOLLOWING]
        streams = streams_in(cells, AT_ONCE, drifts=True)
        streams = [s for s in streams if (AT_ONCE, s, name) in cells]
        streams = [s for s in streams if best(cells, AT_ONCE, s, learners_in(cells, PEER))]
        if not streams:
            raise LookupError(f"no stream with records of {name} and of a peer")
        won = sum(best(cells, AT_ONCE, s, [name, *others]) == name for s in streams)
        used = [r for (at, s, _), r in cells.items() if at == AT_ONCE and s in streams]
        return Number(f"{won} of {len(streams)}", "", runs_of(used))

    return find


def accuracy_of(name: str, stream: str) -> Callable[[Records], Number]:
    """Return the accuracy of a learner on a stream in per cent, labels at once, as a number."""

    def find(records: Records) -> Number:
        record = cells_of(records).get((AT_ONCE, stream, name))
        if record is None:
            raise LookupError(f"no record of {name} on {stream}")
        return single(record["accuracy"], ".1f", record, 100.0)

    return find


def left_out(cells: Cells) -> str:
    """Name the streams that each learner was not run on, by the arrival of labels."""
    lines = []
    for name, learner in LEARNERS.items():
        lacking: dict[str, list[str]] = {}
        for at in (at for at in ARRIVALS if is_asked(learner, *at)):
            streams = [s for s in STREAMS if (at, s, name) not in cells]
            if streams:
                which = "all" if len(streams) == len(STREAMS) else "; ".join(streams)
                lacking.setdefault(which, []).append(str(at).removeprefix("labels known "))
        limit = learner.most_columns
        why = f" (where there are at most {limit} columns)" if limit else ""
        lines += [f"- {name}{why}, {', '.join(at)}: {which}" for which, at in lacking.items()]
    return "\n".join(lines) or "Nothing."


def about() -> str:
    """Return a table of the streams."""
    rows = [[shown(name), stream.about] for name, stream in STREAMS.items()]
    return table(["stream", "what it is"], rows)


def peers() -> str:
    """Say which packages the peers are of."""
    used = {ENVIRONMENTS[its.worker] for its in LEARNERS.values() if its.kind == PEER}
    packages = ", ".join(package for name in sorted(used) for package in RECIPES[name][-1])
    return (
        f"Peers are those of {packages}, with their defaults but for the number of members, which"
        " their names end with. Baselines forecast the shares of the classes among the labels known"
        " so far, and the newest known label, as surely as it was right so far. Where each"
        " label comes late, forests that follow the stream learn in blocks of a quarter of the"
        " delay, or in 64s or 16s: what these know is newer, and their weights are learned from"
        " forecasts that are newer than those that count. Where labels come in blocks, they have"
        f" the delay that is advised for files that are scored later, at most {LONGEST_ADVISED}."
    )


def body(records: Records) -> str:
    """Return the page: aims, losses and differences by delay, costs, streams, what is missing."""
    cells = cells_of(records)
    parts = ["## Aims", table(["aim", "found", "verdict"], aims(cells)), peers()]
    notes: list[tuple[str, Callable[[Cells, Arrival], str | None]]] = [
        (
            "Log loss in nats / accuracy in per cent; the lowest loss of a stream is bold. "
            f"The probability of the true class counts as at least {FLOOR:g}, for all. "
            "`*`: no parameter of this package was chosen on the stream.",
            losses,
        ),
        (
            "Log loss less that of the peer with the lowest one on this stream; negative is "
            f"better. In brackets 95 % intervals, from paired blocks of {BLOCK} rows.",
            differences,
        ),
    ]
    arrivals = sorted({at for at, _, _ in cells}, key=lambda at: (at.in_blocks, at.delay))
    for at in arrivals:
        parts.append(f"## {str(at).capitalize()}")
        for note, show in notes:
            text = show(cells, at)
            parts += [note, text] if text else []
    for key, title, note, form in COSTS:
        text = costs(cells, key, form)
        parts += [f"## {title}, {AT_ONCE}", note, text] if text else []
    parts += ["## Streams", about(), "## Not measured", left_out(cells)]
    return "\n\n".join(part.strip() for part in parts)


PAGE = Page(
    title="Drift",
    question="How good are forecasts where the world changes, beside online peers, and when labels"
    " are late?",
    identity=("stream", "learner", "delay", "in_blocks", "rows", MACHINE),
    body=body,
    numbers={
        "won": streams_won(OURS),
        "won_boosted": streams_won(BOOSTED),
        "won_scaled": streams_won(SCALED),
        "electricity": accuracy_of(OURS, "electricity"),
        "electricity_peer": accuracy_of(RIVAL, "electricity"),
    },
    sentences=(
        "Ten members that follow the stream have the lowest log loss on {won} drifting streams"
        " where labels are known at once, with boosted sets beside on {won_boosted}, and with"
        " scaled trees as well on {won_scaled}; of all rows of"
        " electricity they forecast {electricity} % right, CapyMOA's adaptive random forest of ten"
        " trees {electricity_peer} %.",
    ),
    pictures=(NAME,),
)

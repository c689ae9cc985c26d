"""The page of the benchmark of drift: tables by delay, differences to the best peer, aims.

Everything on it is computed from records, the verdicts too; an aim whose records are not there
says what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.drift.blocks import BLOCK, FLOOR, Difference, difference
from benchmarks.drift.learners import BASELINE, LEARNERS, OWN, PEER
from benchmarks.drift.streams import DELAYS, STREAMS
from benchmarks.pages import Page
from benchmarks.records import MACHINE, Records, table

OURS, FEW = "AMF follow 10", "AMF follow 4"  # the aims are those of the first
PLAIN, CALIBRATED, RIVAL = "AMF plain 10", "AMF calibrated 10", "CapyMOA ARF 10"

Cells = dict[tuple[int, str, str], dict[str, Any]]
"""Records by delay, stream and learner; all of a stream are of the same rows."""


def cells_of(records: Iterable[dict[str, Any]]) -> Cells:
    """Return the records of the longest run of each stream."""
    found = list(records)
    rows = {s: max((r["rows"] for r in found if r["stream"] == s), default=0) for s in STREAMS}
    kept = [r for r in found if r["rows"] == rows.get(r["stream"])]
    return {(r["delay"], r["stream"], r["learner"]): r for r in kept}


def learners_in(cells: Cells, *kinds: str) -> list[str]:
    """Return the learners of these kinds that have records, in the order of their table."""
    there = {learner for _, _, learner in cells}
    return [name for name, its in LEARNERS.items() if its.kind in kinds and name in there]


def streams_in(cells: Cells, delay: int, drifts: bool | None = None) -> list[str]:
    """Return the streams with records at a delay, in the order of their table."""
    there = {stream for at, stream, _ in cells if at == delay}
    return [s for s in STREAMS if s in there and drifts in (None, STREAMS[s].drifts)]


def shown(stream: str) -> str:
    """Return a stream's name, with what it is marked by."""
    name = f"{stream} *" if STREAMS[stream].untouched else stream
    return name if STREAMS[stream].drifts else f"{name} (stationary)"


def best(cells: Cells, delay: int, stream: str, names: Sequence[str]) -> str | None:
    """Return which of these learners has the lowest log loss."""
    there = [name for name in names if (delay, stream, name) in cells]
    return min(there, key=lambda name: cells[delay, stream, name]["log_loss"], default=None)


def losses(cells: Cells, delay: int) -> str:
    """Return a table: log loss and accuracy, a row per stream."""
    names = learners_in(cells, OWN, PEER, BASELINE)
    names = [n for n in names if any((delay, s, n) in cells for s in STREAMS)]
    rows = []
    for stream in streams_in(cells, delay):
        lowest = best(cells, delay, stream, names)
        own = [cells.get((delay, stream, name)) for name in names]
        texts = [r and f"{r['log_loss']:.3f} / {100 * r['accuracy']:.1f}" for r in own]
        marked = [
            f"**{text}**" if name == lowest else text
            for name, text in zip(names, texts, strict=True)
        ]
        rows.append([shown(stream), f"{next(r for r in own if r)['rows']:,}", *marked])
    return table(["stream", "rows", *names], rows)


def differences(cells: Cells, delay: int) -> str | None:
    """Return a table: the log loss of this package's learners less that of the best peer."""
    own, peers = learners_in(cells, OWN), learners_in(cells, PEER)
    rows = []
    for stream in streams_in(cells, delay):
        peer = best(cells, delay, stream, peers)
        if peer is None:
            continue
        each = [to(cells, delay, stream, name, peer) for name in own]
        texts = [d and f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})" for d in each]
        loss = f"{cells[delay, stream, peer]['log_loss']:.3f}"
        rows.append([shown(stream), f"{peer}, {loss}", *texts])
    return table(["stream", "best peer, its loss", *own], rows) if own and rows else None


def to(cells: Cells, delay: int, stream: str, name: str, other: str) -> Difference | None:
    """Return the difference of two learners' losses, block by block, if both were run."""
    both = [cells.get((delay, stream, one)) for one in (name, other)]
    if not all(both):
        return None
    return difference(*(record["block_losses"] for record in both if record))


def costs(cells: Cells, key: str, form: str, delay: int = DELAYS[0]) -> str:
    """Return a table of processor seconds or of memory at delay 1, a row per stream."""
    names = [
        n for n in learners_in(cells, OWN, PEER) if any((delay, s, n) in cells for s in STREAMS)
    ]
    rows = []
    for stream in streams_in(cells, delay):
        own = [cells.get((delay, stream, name), {}).get(key) for name in names]
        rows.append([shown(stream), *(None if v is None else format(v, form) for v in own)])
    return table(["stream", *names], rows)


def aims(cells: Cells) -> list[list[str]]:
    """Return what was aimed at, what is so, and the verdict, a row for each aim."""
    rows = [lowest(cells, delay, share) for delay, share in ((1, 0.9), (64, 0.75), (1024, 0.75))]
    rows.append(
        ratio(
            cells,
            "stationary: log loss at most 1.01 of calibrated AMF's, delay 1",
            CALIBRATED,
            "log_loss",
            1.01,
            drifts=False,
        )
    )
    title = "electricity, all rows: accuracy at least 0.93, delay 1"
    ours = cells.get((1, "electricity", OURS))
    if ours is None or ours["rows"] < STREAMS["electricity"].rows:
        rows.append([title, f"no record of {OURS} on all rows", "open"])
    else:
        rows.append([title, f"{ours['accuracy']:.4f}", verdict(ours["accuracy"] >= 0.93)])
    for title, other, most in (
        ("processor time at most 6 times that of plain AMF, delay 1", PLAIN, 6.0),
        ("processor time below that of CapyMOA's ARF, delay 1", RIVAL, 1.0),
    ):
        rows.append(ratio(cells, title, other, "cpu_seconds", most))
    return rows


def lowest(cells: Cells, delay: int, share: float) -> list[str]:
    """Return the row of an aim: the lowest log loss of all on a share of the drifting streams."""
    title = f"lowest log loss on {share:.0%} of the drifting streams, delay {delay:,}"
    streams = [s for s in streams_in(cells, delay, drifts=True) if (delay, s, OURS) in cells]
    others = [name for name in learners_in(cells, OWN, PEER, BASELINE) if name not in (OURS, FEW)]
    peers = learners_in(cells, PEER)
    streams = [s for s in streams if best(cells, delay, s, peers)]
    if not streams:
        return [title, f"no stream with records of {OURS} and of a peer", "open"]
    won = [s for s in streams if best(cells, delay, s, [OURS, *others]) == OURS]
    clear = [s for s in streams if is_below(cells, delay, s, best(cells, delay, s, others))]
    fresh = [s for s in streams if STREAMS[s].untouched]
    kept = f"{sum(s in won for s in fresh)} of {len(fresh)} untouched"
    is_whole = len(streams) == sum(stream.drifts for stream in STREAMS.values())
    text = f"{len(won)} of {len(streams)}, {kept}; interval below 0 on {len(clear)}"
    met = verdict(len(won) >= share * len(streams))
    return [title, text, met if is_whole else f"{met} so far"]


def is_below(cells: Cells, delay: int, stream: str, other: str | None) -> bool:
    """Whether the whole interval of the difference to another learner is below 0."""
    found = to(cells, delay, stream, OURS, other) if other else None
    return found is not None and found.high < 0.0


def ratio(
    cells: Cells, title: str, other: str, key: str, most: float, drifts: bool | None = None
) -> list[str]:
    """Return the row of an aim: at most a multiple of another learner's value, on every stream."""
    streams = [
        s for s in streams_in(cells, 1, drifts) if (1, s, OURS) in cells and (1, s, other) in cells
    ]
    if not streams:
        return [title, f"no stream with records of {OURS} and {other}", "open"]
    each = {s: cells[1, s, OURS][key] / cells[1, s, other][key] for s in streams}
    worst = max(each, key=each.__getitem__)
    text = f"at most {each[worst]:.2f} times, on {worst}; {len(streams)} streams"
    is_whole = len(streams) == sum(drifts in (None, its.drifts) for its in STREAMS.values())
    met = verdict(each[worst] <= most)
    return [title, text, met if is_whole else f"{met} so far"]


def verdict(is_met: bool) -> str:
    """Return "met" or "missed"."""
    return "met" if is_met else "missed"


def left_out(cells: Cells) -> str:
    """Name the streams that each learner was not run on, by delay."""
    lines = []
    for name, learner in LEARNERS.items():
        for delay in DELAYS:
            lacking = [s for s in STREAMS if (delay, s, name) not in cells]
            if not lacking:
                continue
            which = "all streams" if len(lacking) == len(STREAMS) else "; ".join(lacking)
            limit = learner.most_columns
            why = f" (run on at most {limit} columns)" if limit else ""
            lines.append(f"- {name}{why}, delay {delay:,}: {which}")
    return "\n".join(lines) or "Nothing."


def about() -> str:
    """Return a table of the streams."""
    rows = [[shown(name), stream.about] for name, stream in STREAMS.items()]
    return table(["stream", "what it is"], rows)


def body(records: Records) -> str:
    """Return the page: aims, losses and differences by delay, costs, streams, what is missing."""
    cells = cells_of(records)
    parts = ["## Aims", table(["aim", "found", "verdict"], aims(cells))]
    at = sorted({delay for delay, _, _ in cells})
    notes: list[tuple[str, Callable[[Cells, int], str | None]]] = [
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
    for delay in at:
        parts.append(f"## Labels known {delay:,} row{'s' * (delay > 1)} later")
        for note, show in notes:
            text = show(cells, delay)
            parts += [note, text] if text else []
    if DELAYS[0] in at:
        parts += [
            "## Processor seconds, delay 1",
            "To forecast and learn all rows, one at a time, "
            "all threads of the process, compilers of Java among them; reading, and a first "
            "run on some rows, left out.",
            costs(cells, "cpu_seconds", ".1f"),
        ]
        parts += [
            "## Memory, delay 1",
            "MiB at most beyond those before the stream. What Java "
            "leaves to collect counts; its heap was held to 2 GiB.",
            costs(cells, "peak_mib", ",.0f"),
        ]
    parts += ["## Streams", about(), "## Not measured", left_out(cells)]
    return "\n\n".join(part.strip() for part in parts)


PAGE = Page(
    title="Drift",
    question="How good are forecasts where the world changes, beside online peers, and when labels"
    " are late?",
    identity=("stream", "learner", "delay", "rows", MACHINE),
    body=body,
)

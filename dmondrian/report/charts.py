"""Charts as inline SVG: lines, points, bars and a matrix, in the colours of the page.

Relies on the page's style for colours (classes `s0`, `s1`, ... of series, `grid`, `axis`). Promises
charts that are readable on a phone: they are drawn for its width, and wider pages hold several.
A value can be read off by a mouse, from the title of its mark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

WIDTH, HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 34
LONGEST_NAME = 200  # letters of a category, which may be a text of any length
_TICKS = 4
_BESIDE = 16  # for the name of a vertical axis

Format = Callable[[float], str]


class Line(NamedTuple):
    """A series of a chart; points where y is not finite are left out."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()  # low and high at each point
    is_stepped: bool = False
    is_dashed: bool = False


def line_chart(
    lines: Sequence[Line],
    x_name: str,
    x_format: Format,
    y_format: Format,
    *,
    from_zero: bool = False,
    log_x: bool = False,
    counts: bool = False,
    ends: tuple[float, float] | None = None,
    y_ends: tuple[float, float] | None = None,
    places: Sequence[tuple[float, str]] = (),
    y_name: str = "",
    label: str = "",
) -> Markup:
    """Return a chart of lines.

    Parameters
    ----------
    lines : sequence of Line
    x_name : str
        What the horizontal axis is.
    x_format, y_format : callable
        A number as a label.
    from_zero : bool
        Whether the vertical axis begins at 0.
    log_x : bool
        Whether the horizontal axis is logarithmic; values are > 0.
    counts : bool
        Whether the vertical axis has whole numbers alone.
    ends : pair of float, optional
        Of both axes, for charts of shares.
    y_ends : pair of float, optional
        Of the vertical axis, where charts side by side have one range; values are between them.
    places : sequence of (float, str)
        Places on the horizontal axis to mark, and what they are.
    y_name : str
        What the vertical axis is, where the lines are not it.
    label : str
        Name of the picture for those who do not see it; by default the lines and both axes.
    """
    kept = [(line, _finite(line)) for line in lines]
    lines = [line for line, points in kept if points]
    drawn = [line._replace(points=points) for line, points in kept if points]
    values = [point for line in drawn for point in line.points]
    bands = [end for line in lines for pair in line.band for end in pair if math.isfinite(end)]
    if not values:
        return Markup()
    xs, ys = [x for x, _ in values], [y for _, y in values] + bands
    low, high = ends or y_ends or (0.0 if from_zero else min(ys), max(ys))
    scale_y = _Scale(low, high, HEIGHT - _BOTTOM, _TOP, least_step=1.0 if counts else 0.0)
    x_low, x_high = ends or (min(xs), max(xs))
    scale_x = _Scale(x_low, x_high, _LEFT, WIDTH - _RIGHT, is_log=log_x)
    parts = [_axes(scale_x, scale_y, x_name, x_format, y_format)]
    parts += [
        f'<path class="place" d="M{scale_x(x):.1f} {_TOP}V{HEIGHT - _BOTTOM}">'
        f"<title>{escape(name)}</title></path>"
        for x, name in places
        if x_low <= x <= x_high
    ]
    for number, line in enumerate(drawn):
        if line.band:
            parts.append(_band(lines[number], number, scale_x, scale_y))
        parts.append(_path(line, number, scale_x, scale_y))
        alone = " alone" if len(line.points) == 1 else ""  # no line shows it
        parts += [
            f'<circle class="s{number} mark{alone}" cx="{scale_x(x):.1f}" '
            f'cy="{scale_y(y):.1f}" r="3">'
            f"<title>{escape(line.name)}: {y_format(y)} at {x_format(x)}</title></circle>"
            for x, y in _thinned(line.points)
        ]
    names = ", ".join(line.name for line in lines)
    shown = f"{y_name} of {names}" if y_name else names
    alternative = label or f"{shown} against {x_name}"
    return _svg("".join(parts), alternative, beside=_beside(y_name))


def point_chart(
    points: Sequence[tuple[float, float]],
    x_name: str,
    y_name: str,
    form: Format,
) -> Markup:
    """Return points (x, y) of one unit, on axes of one range, and the diagonal where both agree."""
    if not points:
        return Markup()
    values = [value for point in points for value in point]
    low, high = min(values), max(values)
    scale_x = _Scale(low, high, _LEFT, WIDTH - _RIGHT)
    scale_y = _Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(scale_x, scale_y, x_name, form, form)]
    parts += [
        f'<circle class="s0 point" cx="{scale_x(x):.1f}" cy="{scale_y(y):.1f}" r="2.2">'
        f"<title>{escape(x_name)} {form(x)}, {escape(y_name)} {form(y)}</title></circle>"
        for x, y in points
    ]
    ends = f"M{_LEFT} {HEIGHT - _BOTTOM}L{WIDTH - _RIGHT} {_TOP}"
    parts.append(f'<path class="s1 line" stroke-dasharray="4 3" d="{ends}"/>')
    label = f"{len(points):,} points of {y_name} against {x_name}"
    return _svg("".join(parts), label, beside=_beside(y_name))


def histogram_chart(
    bars: Sequence[tuple[float, float, float]], x_name: str, x_format: Format
) -> Markup:
    """Return bars (lower bound, upper bound, share) side by side.

    The first and the last may have a bound that is infinite: they are as wide as the others, and
    paler.
    """
    if not bars:
        return Markup()
    width = next(high - low for low, high, _ in bars if math.isfinite(high - low))
    low = bars[0][0] if math.isfinite(bars[0][0]) else bars[0][1] - width
    high = bars[-1][1] if math.isfinite(bars[-1][1]) else bars[-1][0] + width
    scale_x = _Scale(low, high, _LEFT, WIDTH - _RIGHT)
    most = max(share for *_, share in bars)
    scale_y = _Scale(0.0, most, HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(scale_x, scale_y, x_name, x_format, lambda value: f"{100.0 * value:.3g}%")]
    for start, stop, share in bars:
        left = scale_x(start if math.isfinite(start) else low)
        right = scale_x(stop if math.isfinite(stop) else high)
        top = scale_y(share)
        if not math.isfinite(start):
            kind, text = " rest", f"below {x_format(stop)}"
        elif not math.isfinite(stop):
            kind, text = " rest", f"above {x_format(start)}"
        else:
            kind, text = "", f"{x_format(start)} to {x_format(stop)}"
        parts.append(
            f'<rect class="s0 bar{kind}" x="{left + 0.4:.1f}" y="{top:.1f}" '
            f'width="{max(right - left - 0.8, 0.5):.1f}" height="{HEIGHT - _BOTTOM - top:.1f}">'
            f"<title>{text}: {share:.2%} of the rows</title></rect>"
        )
    beside = _beside("share of the rows")
    return _svg("".join(parts), f"histogram of {x_name}", beside=beside)


def area_chart(
    names: Sequence[str],
    points: Sequence[tuple[float, Sequence[float]]],
    x_name: str,
    x_format: Format,
) -> Markup:
    """Return areas upon each other, the first name on top: shares, of sum 1 at each point.

    Parameters
    ----------
    names : sequence of str
    points : sequence of (float, sequence of float)
        Place on the horizontal axis, and the share of each name there.
    x_name : str
    x_format : callable
    """
    if len(points) < 2:
        return Markup()
    xs = [x for x, _ in points]
    scale_x = _Scale(xs[0], xs[-1], _LEFT, WIDTH - _RIGHT)
    scale_y = _Scale(0.0, 1.0, HEIGHT - _BOTTOM, _TOP)
    parts, above = [], [1.0] * len(points)
    for number, name in enumerate(names):
        below = [top - shares[number] for top, (_, shares) in zip(above, points, strict=True)]
        upper = "L".join(
            f"{scale_x(x):.1f} {scale_y(y):.1f}" for x, y in zip(xs, above, strict=True)
        )
        lower = "L".join(
            f"{scale_x(x):.1f} {scale_y(max(y, 0.0)):.1f}"
            for x, y in zip(reversed(xs), reversed(below), strict=True)
        )
        last = f"{points[-1][1][number]:.0%}"
        parts.append(
            f'<path class="a{number} area" d="M{upper}L{lower}Z">'
            f"<title>{escape(name)}: {last} at the end</title></path>"
        )
        above = below
    parts.append(_axes(scale_x, scale_y, x_name, x_format, lambda value: f"{value:.0%}"))
    return _svg("".join(parts), f"shares of {', '.join(names)} against {x_name}")


def bar_chart(bars: Sequence[tuple[str, float]], y_format: Format, most: float = 0.0) -> Markup:
    """Return horizontal bars with their names, the first on top.

    ``most`` is the value of the longest bar of charts side by side; by default of this chart.
    """
    if not bars:
        return Markup()
    row, top = 20.0, 4.0
    height = top + row * len(bars)
    largest = most or max(value for _, value in bars) or 1.0
    parts = []
    names = shortened([name for name, _ in bars], LONGEST_NAME)
    values = [value for _, value in bars]
    labels = shortened(names, 18)
    for i, (name, value, shown) in enumerate(zip(names, values, labels, strict=True)):
        y, length = top + row * i, 170.0 * value / largest
        parts.append(
            f"<g><title>{escape(name)}: {y_format(value)}</title>"
            f'<text x="122" y="{y + 13}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="s0 bar" x="128" y="{y + 3}" width="{max(length, 0.5):.1f}" height="13"/>'
            f'<text x="{133 + length:.1f}" y="{y + 13}">{y_format(value)}</text></g>'
        )
    return _svg("".join(parts), f"bars of {', '.join(names[:8])}", height)


def matrix_chart(names: Sequence[str], counts: Sequence[Sequence[float]]) -> Markup:
    """Return a confusion matrix: labels in rows, predictions in columns, shaded by row's share."""
    k = len(names)
    left, top = 92, 31.0
    size = (WIDTH - left - 8) / k
    tall = min(size, 44.0)
    has_numbers = size >= 34.0  # wide enough for a number
    middle = left + size * k / 2.0
    parts = [f'<text x="{middle:.1f}" y="11" text-anchor="middle">predicted</text>']
    of_rows, of_columns = shortened(names, 13), shortened(names, int(size / 7))
    for i, short in enumerate(of_rows):
        y = top + tall * (i + 0.5) + 4.0
        parts.append(f'<text x="{left - 6}" y="{y:.1f}" text-anchor="end">{escape(short)}</text>')
        if has_numbers:
            x = left + size * (i + 0.5)
            column_name = escape(of_columns[i])
            parts.append(f'<text x="{x:.1f}" y="26" text-anchor="middle">{column_name}</text>')
        whole = sum(counts[i]) or 1.0
        for j, count in enumerate(counts[i]):
            share = count / whole
            place = f'x="{left + size * j + 1:.1f}" y="{top + tall * i + 1:.1f}"'
            text = f"{names[i]} predicted as {names[j]}: {count:,.0f} rows, {share:.1%} of its own"
            box = f'width="{size - 2:.1f}" height="{tall - 2:.1f}"'
            parts.append(
                f'<rect class="cell" {place} {box} fill-opacity="{share:.3f}">'
                f"<title>{escape(text)}</title></rect>"
            )
            if has_numbers:
                x, y = left + size * (j + 0.5), top + tall * (i + 0.5) + 4
                kind = "over" if share > 0.55 else "upon"
                number = f"{share:.0%}"
                parts.append(
                    f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">'
                    f"{number}</text>"
                )
    return _svg("".join(parts), "confusion matrix", top + tall * k + 6)


class _Scale:
    """Maps values to positions on an axis."""

    def __init__(
        self,
        low: float,
        high: float,
        start: float,
        stop: float,
        is_log: bool = False,
        least_step: float = 0.0,
    ) -> None:
        if high <= low:
            margin = abs(low) * 0.05
            low, high = (
                (low / 2.0, high * 2.0) if is_log else (low - margin, high + (margin or 1.0))
            )
        self.low, self.high, self.is_log = low, high, is_log
        self._start, self._stop, self._least = start, stop, least_step

    def __call__(self, value: float) -> float:
        return self._start + self._share(value) * (self._stop - self._start)

    def _share(self, value: float) -> float:
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return round values between the ends."""
        if self.is_log:
            return self._log_ticks()
        rough = (self.high - self.low) / _TICKS
        size = 10.0 ** math.floor(math.log10(rough))
        step = max(self._least, next(size * k for k in (1, 2, 5, 10) if size * k >= 0.8 * rough))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        """Return powers of ten; where these are few, also 5 times, or 2 and 5 times these."""
        least, most = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        ticks: list[float] = []
        for factors in ((1.0,), (1.0, 5.0), (1.0, 2.0, 5.0)):
            powers = (10.0**power for power in range(least, most + 1))
            ticks = [f * p for p in powers for f in factors if self.low <= f * p <= self.high]
            if len(ticks) >= 3:
                break
        return ticks[:: -(-len(ticks) // (_TICKS + 1))] if ticks else [self.low, self.high]


def _axes(x: _Scale, y: _Scale, x_name: str, x_format: Format, y_format: Format) -> str:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for tick, label in _distinct(y.ticks(), y_format):
        at = y(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for tick, label in _distinct(x.ticks(), x_format):
        at = x(tick)
        anchor = "end" if at > right - 14 else "middle"
        parts.append(f'<path class="axis" d="M{at:.1f} {bottom}v4"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{label}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_name)}</text>'
    )
    return "".join(parts)


def _beside(y_name: str) -> str:
    """Return the name of the vertical axis, at its side."""
    if not y_name:
        return ""
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    place = f'transform="translate(-4 {middle:g}) rotate(-90)" text-anchor="middle"'
    return f"<text {place}>{escape(y_name)}</text>"


def _path(line: Line, number: int, x: _Scale, y: _Scale) -> str:
    places = [(x(a), y(b)) for a, b in line.points]
    steps = [f"M{places[0][0]:.1f} {places[0][1]:.1f}"]
    for at, height in places[1:]:
        steps.append(f"H{at:.1f}V{height:.1f}" if line.is_stepped else f"L{at:.1f} {height:.1f}")
    dashes = ' stroke-dasharray="4 3"' if line.is_dashed else ""
    return f'<path class="s{number} line"{dashes} d="{"".join(steps)}"/>'


def _band(line: Line, number: int, x: _Scale, y: _Scale) -> str:
    ends = [
        (x(at), y(low), y(high))
        for (at, value), (low, high) in zip(line.points, line.band, strict=True)
        if math.isfinite(value + low + high)
    ]
    if not ends:
        return ""
    upper = "L".join(f"{at:.1f} {high:.1f}" for at, _, high in ends)
    lower = "L".join(f"{at:.1f} {low:.1f}" for at, low, _ in reversed(ends))
    return f'<path class="s{number} band" d="M{upper}L{lower}Z"/>'


def _finite(line: Line) -> list[tuple[float, float]]:
    return [(x, y) for x, y in line.points if math.isfinite(x) and math.isfinite(y)]


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return about 24 points to mark, the last one among them."""
    step = max(1, len(points) // 24)
    return points[::-1][::step]


def _distinct(ticks: Sequence[float], form: Format) -> list[tuple[float, str]]:
    """Return ticks and labels, without those that repeat the label before."""
    kept: list[tuple[float, str]] = []
    for tick in ticks:
        label = form(tick)
        if not kept or label != kept[-1][1]:
            kept.append((tick, label))
    return kept


def shortened(names: Sequence[str], length: int) -> list[str]:
    """Return names of at most a length, as many of them distinct as possible.

    Those that begin alike show their ends too; those that would read the same after all, numbers.
    """
    made = [_from_the_front(name, length) for name in names]
    if len(set(made)) < len(set(names)):
        made = [
            _from_both_ends(name, length) if made.count(short) > 1 else short
            for name, short in zip(names, made, strict=True)
        ]
    if len(set(made)) < len(set(names)):
        made = [
            f"{short[: max(1, length - len(str(i)) - 1)]}…{i}" if made.count(short) > 1 else short
            for i, short in enumerate(made, 1)
        ]
    return made


def _from_the_front(name: str, length: int) -> str:
    return name if len(name) <= length else name[: max(1, length - 1)] + "…"


def _from_both_ends(name: str, length: int) -> str:
    if len(name) <= length or length < 3:
        return _from_the_front(name, length)
    front = (length - 1) // 2
    return f"{name[:front]}…{name[front + 1 - length :]}"


def _svg(content: str, label: str, height: float = HEIGHT, beside: str = "") -> Markup:
    """Return a picture; ``beside`` is what stands to the left of the axis."""
    left = _BESIDE if beside else 0
    return Markup(
        f'<svg viewBox="{-left} 0 {WIDTH + left} {height:g}" role="img" '
        f'aria-label="{escape(label)}">{content}{beside}</svg>'
    )

"""Numbers of things and of bytes, and names from outside, as people read them.

Relies on nothing.
"""

from __future__ import annotations

_ENDS = (0x2028, 0x2029)  # of lines and paragraphs, which some terminals heed
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_ESCAPES |= {9: "\\t", 10: "\\n", 13: "\\r"} | {code: f"\\u{code:x}" for code in _ENDS}


NOTED = {"is_remark": True}
"""Marks a log record that may also come as a warning, so that it is shown once."""
EACH_TIME = {"is_remark": False}
"""Marks a warning of a change of state, which is shown each time, also in the same words."""


def counted(number: int, what: str, plural: str | None = None) -> str:
    """Return a number and what it counts: "1 row", "2,000 rows", "2 classes"."""
    return f"{number:,} {what if number == 1 else plural or f'{what}s'}"


def size(n_bytes: float) -> str:
    """Return bytes with a unit: "12 B", "939 kB", "1.35 GB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.3g} {unit}"
    return f"{n_bytes:.0f} B"


def label_as_key(label: object) -> str:
    """Return a class label as the key of a job file: "1", "true", or the text itself."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def on_one_line(text: str) -> str:
    r"""Return a text with line ends and other control characters escaped, as ``\n``.

    A name from outside, of a column or a class, shall not end a line of a table.
    """
    return text.translate(_ESCAPES)

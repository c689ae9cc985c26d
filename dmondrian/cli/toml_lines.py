"""Line numbers of keys in a TOML text, for messages about a job file.

`tomllib` returns values but not lines. It does refuse incomplete text, so the statement that sets a
key ends at the first line up to which the text parses and has the key. That is exact for every form
that TOML has (dotted keys, inline tables, values over several lines) and costs a
few parses of a short file, only when there is an error to report.
"""

from __future__ import annotations

import tomllib


def line_of(text: str, keys: tuple[str, ...]) -> int | None:
    """Return the line on which the statement that sets a key starts.

    Parameters
    ----------
    text : str
        A valid TOML document.
    keys : tuple of str
        Names from the top table down, such as ``("forest", "alpha")``.

    Returns
    -------
    int or None
        Line number from 1; None when the document has no such key.
    """
    lines = text.split("\n")
    complete = 0  # lines up to which the text is known to parse
    for end in range(1, len(lines) + 1):
        try:
            table = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # inside a value that goes on
        if _holds(table, keys):
            return complete + 1
        complete = end
    return None


def _holds(table: object, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(table, dict) or key not in table:
            return False
        table = table[key]
    return True

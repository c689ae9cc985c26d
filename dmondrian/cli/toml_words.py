"""Messages about parameters as a job file writes these: ``drift = "none"`` for ``drift=None``.

Estimators name their parameters and values as Python does. Relies on nothing. Promises that a text
without such values stays as it is.
"""

from __future__ import annotations

import re

_WORDS = {"None": '"none"', "True": "true", "False": "false"}
_WORD = rf"\b(?:{'|'.join(_WORDS)})\b"
_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)"
_GIVEN = re.compile(rf"\b([a-z]\w*)=({_WORD}|\"[^\"]*\"|'[^']*'|{_NUMBER})")
_TUPLE = re.compile(r"=?\(('[^']*'(?:, '[^']*')*),?\)")
_ALONE = re.compile(_WORD)


def in_toml(text: str) -> str:
    """Return a message with the parameters and values of Python in it as TOML writes them."""

    def given(found: re.Match[str]) -> str:
        value = found[2]
        if value[0] == "'":
            value = f'"{value[1:-1]}"'
        return f"{found[1]} = {value}"

    def listed(found: re.Match[str]) -> str:
        equals = " = " if found[0][0] == "=" else ""
        values = found[1].replace("'", '"')
        return f"{equals}[{values}]"

    text = _TUPLE.sub(listed, text)
    return _ALONE.sub(lambda found: _WORDS[found[0]], _GIVEN.sub(given, text))

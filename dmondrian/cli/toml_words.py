"""Messages about parameters as a job file writes these: ``drift = "none"`` for ``drift=None``.

Estimators name their parameters, values and types as Python does. Relies on nothing. Promises that
a text without such stays as it is.
"""

from __future__ import annotations

import re

_WORDS = {"None": '"none"', "True": "true", "False": "false"}
_KINDS = {  # as scikit-learn names them
    "an array-like": "a list",
    "an instance of 'dict'": "a table",
    "an instance of 'bool' or an instance of 'numpy.bool'": "true or false",
}
_WORD = rf"\b(?:{'|'.join(_WORDS)})\b"
_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)"
_GIVEN = re.compile(rf"\b([a-z]\w*)=({_WORD}|\"[^\"]*\"|'[^']*'|{_NUMBER})")
_TUPLE = re.compile(r"=?\(('[^']*'(?:, '[^']*')*),?\)")
_ALONE = re.compile(_WORD)


def in_toml(text: str) -> str:
    """Return a message with Python's parameters, values and types as TOML has them."""

    def given(match: re.Match[str]) -> str:
        value = match[2]
        if value[0] == "'":
            value = f'"{value[1:-1]}"'
        return f"{match[1]} = {value}"

    def listed(match: re.Match[str]) -> str:
        equals = " = " if match[0][0] == "=" else ""
        values = match[1].replace("'", '"')
        return f"{equals}[{values}]"

    for kind, name in _KINDS.items():
        text = text.replace(kind, name)
    text = _TUPLE.sub(listed, text)
    return _ALONE.sub(lambda match: _WORDS[match[0]], _GIVEN.sub(given, text))

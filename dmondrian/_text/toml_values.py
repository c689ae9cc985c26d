"""Values as text of a TOML file.

Relies on JSON's strings being TOML's basic strings, but for the control character that TOML does
not take as it is. Promises text that `tomllib` reads back as the same value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def toml_value(value: Any) -> str:
    """Return a text, number, boolean, list or mapping as TOML writes it."""
    if isinstance(value, Mapping):
        entries = (f"{toml_value(str(key))} = {toml_value(own)}" for key, own in value.items())
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

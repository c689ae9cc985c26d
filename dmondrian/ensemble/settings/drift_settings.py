"""How a forest follows a stream, as checked data: ages of its trees, and when labels come.

Relies on nothing. Promises that what comes from outside is checked before a forest is built of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dmondrian.errors import CorruptError

LARGEST_DELAY = 2**15  # then no tree but the oldest is older, and rows that wait are kept
LARGEST_AGE = 40  # exponent
_LEAST_AGE = 5


@dataclass(frozen=True)
class DriftSettings:
    """Settings of a forest that follows a stream; see :mod:`dmondrian.drift`.

    Attributes
    ----------
    first, last : int
        Octaves of age that trees cover.
    delay : int
        Rows whose labels come together.
    boosted : bool
        Whether members mix boosted sets beside trees: of two classes or more, or of numbers.
    """

    first: int = 5
    last: int = 15
    delay: int = 1
    boosted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON-able dict."""
        values = dataclasses.asdict(self)
        if not self.boosted:  # as before there were any
            del values["boosted"]
        return values

    @classmethod
    def from_json(cls, values: Any) -> DriftSettings:
        """Return the settings of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If they are none.
        """
        names = [field.name for field in dataclasses.fields(cls) if field.name != "boosted"]
        is_sound = isinstance(values, dict) and set(values) - {"boosted"} == set(names)
        is_sound = is_sound and all(type(values[name]) is int for name in names)
        is_sound = is_sound and values.get("boosted", True) is True
        if (
            not is_sound
            or not _LEAST_AGE <= values["first"] <= values["last"] <= LARGEST_AGE
            or not 1 <= values["delay"] <= LARGEST_DELAY
        ):
            raise CorruptError(
                f"settings of a forest that follows a stream should be {names}, whole numbers in "
                f"their ranges; found {str(values)[:80]}"
            )
        return cls(**values)

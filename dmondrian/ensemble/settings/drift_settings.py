"""Settings of a forest that follows a stream, as checked data: ages of trees, delay of labels.

Relies on nothing. Promises that what comes from outside is checked before a forest is built of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dmondrian.ensemble.settings.label_period import Period, period_of
from dmondrian.errors import CorruptError, ParameterError

LARGEST_DELAY = 2**15  # then no tree but the oldest is older, and rows that wait are kept
LARGEST_AGE = 40  # exponent
_LEAST_AGE = 5
_FLAGS = "boosted", "finds_rounds", "scaled"  # stored where they are true


@dataclass(frozen=True)
class DriftSettings:
    """Settings of a forest that follows a stream; see :mod:`dmondrian.drift`.

    Attributes
    ----------
    first, last : int
        Octaves of age that trees cover.
    delay : int
        Rows whose labels come together; not read where there is a ``period``.
    boosted : bool
        Whether members mix boosted sets beside trees: of two classes or more, or of numbers.
    period : str or None
        Time within which labels come together, in the words of a
        :class:`dmondrian.ensemble.settings.label_period.Period`.
    scaled : bool
        Whether members mix trees with scales that are found on kept rows, too: those of boosted
        sets.
    finds_rounds : bool
        Whether boosted sets have as many rounds as are found; those that earlier versions began
        have as many as these had.
    monotone : tuple of int or None
        1 or -1 for each feature with which forecasts rise or fall, and which boosted sets alone
        see; 0 for others. None where there is none.
    """

    first: int = 5
    last: int = 15
    delay: int = 1
    boosted: bool = False
    period: str | None = None
    finds_rounds: bool = True
    scaled: bool = False
    monotone: tuple[int, ...] | None = None

    @classmethod
    def of_delay(
        cls, delay: int | str, boosted: bool = False, scaled: bool = False
    ) -> DriftSettings:
        """Return the settings of a delay in rows or, as text, in time.

        Raises
        ------
        ParameterError
            If a text is no length of time.
        """
        if isinstance(delay, str):
            return cls(boosted=boosted, scaled=scaled, period=period_of(delay).in_words)
        return cls(delay=int(delay), boosted=boosted, scaled=scaled)

    @property
    def length(self) -> Period | None:
        """The time within which labels come together; None where they do by rows."""
        return None if self.period is None else period_of(self.period)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON-able dict."""
        values = dataclasses.asdict(self)
        if not self.boosted:  # as before there were any
            del values["boosted"]
        if self.period is None:
            del values["period"]
        if not (self.boosted and self.finds_rounds):
            del values["finds_rounds"]
        if not self.scaled:
            del values["scaled"]
        del values["monotone"]
        if self.monotone is not None:
            values["monotone"] = list(self.monotone)
        return values

    @classmethod
    def from_json(cls, values: Any) -> DriftSettings:
        """Return the settings of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If they are none.
        """
        later = {"boosted", "period", "finds_rounds", "scaled", "monotone"}
        names = [field.name for field in dataclasses.fields(cls) if field.name not in later]
        is_sound = isinstance(values, dict) and set(values) - later == set(names)
        is_sound = is_sound and all(type(values[name]) is int for name in names)
        is_sound = is_sound and all(values.get(name, True) is True for name in _FLAGS)
        is_sound = is_sound and ("finds_rounds" not in values or "boosted" in values)
        is_sound = is_sound and ("scaled" not in values or "finds_rounds" in values)
        is_sound = is_sound and _is_period(values.get("period", "1"))
        monotone = values.get("monotone", [1]) if is_sound else None
        is_sound = is_sound and _are_directions(monotone)
        is_sound = is_sound and ("monotone" not in values or "finds_rounds" in values)
        if (
            not is_sound
            or not _LEAST_AGE <= values["first"] <= values["last"] <= LARGEST_AGE
            or not 1 <= values["delay"] <= LARGEST_DELAY
        ):
            raise CorruptError(
                f"settings of a forest that follows a stream should be {names}, whole numbers in "
                f"their ranges; found {str(values)[:80]}"
            )
        if "monotone" in values:
            values = {**values, "monotone": tuple(values["monotone"])}
        return cls(**{"finds_rounds": "boosted" not in values, **values})


def _are_directions(stored: Any) -> bool:
    """Return whether it is a list of directions, of which some are not 0."""
    is_list = isinstance(stored, list) and all(type(each) is int for each in stored)
    return is_list and set(stored) <= {-1, 0, 1} and any(stored)


def _is_period(stored: Any) -> bool:
    """Return whether it is the words of a period."""
    try:
        return isinstance(stored, str) and period_of(stored).in_words == stored
    except ParameterError:
        return False

"""Memory for the trees that an estimator asks for.

Relies on what an empty tree takes. Promises that nothing is built where it cannot fit.
"""

from __future__ import annotations

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest

_MANY = 10_000  # trees up to which nobody asks how much memory there is
_OBJECTS = 2500  # bytes of a tree beside its nodes, as Python's objects


def check_room(parameters: ForestParameters, n_trees: int) -> None:
    """Refuse trees that memory cannot hold even without a row, before the first one is made.

    Raises
    ------
    ParameterError
        If they take more than there is; the message tells both sizes.
    """
    if n_trees <= _MANY:
        return
    from dmondrian._memory_limit import usable_bytes  # forests of fewer trees do without stores

    size, there = n_trees * (Forest(parameters, [0]).n_bytes + _OBJECTS), usable_bytes()
    if size > there:
        raise ParameterError(
            f"{n_trees} trees take {size / 2**30:.3g} GiB before the first row, there are "
            f"{there / 2**30:.3g}: give fewer"
        )

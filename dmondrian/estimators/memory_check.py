"""Check that the empty trees of an estimator fit into memory.

Relies on the size of an empty tree. Promises that no tree is built if they do not fit.
"""

from __future__ import annotations

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.forest.forest import Forest

_MANY = 10_000  # trees up to which memory is not checked
_OBJECTS = 2500  # bytes of a tree's Python objects, besides its nodes


def check_memory(parameters: ForestParameters, n_trees: int) -> None:
    """Refuse more empty trees than fit into memory, before the first one is made.

    Raises
    ------
    ParameterError
        If they need more memory than there is; the message has both sizes.
    """
    if n_trees <= _MANY:
        return
    from dmondrian._memory_limit import usable_bytes  # not needed for small forests

    size, there = n_trees * (Forest(parameters, [0]).n_bytes + _OBJECTS), usable_bytes()
    if size > there:
        raise ParameterError(
            f"{n_trees} trees take {size / 2**30:.3g} GiB before the first row, there are "
            f"{there / 2**30:.3g}: give fewer"
        )

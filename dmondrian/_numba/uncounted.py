"""Values in compiled code whose arrays carry no reference counts."""

from __future__ import annotations

from typing import Any

from numba import types


def uncounted(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return a value of type ``kind`` whose arrays carry no reference counts."""
    if isinstance(kind, types.Array):
        view = context.make_array(kind)(context, builder, value)
        view.meminfo, view.parent = view.meminfo.type(None), view.parent.type(None)
        return view._getvalue()
    if isinstance(kind, types.BaseTuple):
        for k, each in enumerate(kind.types):
            known = builder.extract_value(value, k)
            element = uncounted(context, builder, each, known)
            if element is not known:
                value = builder.insert_value(value, element, k)
    return value

"""Kernels compiled by our own passes in Numba's compiler: sooner compiled, and faster.

Relies on private parts of Numba, of the versions in :data:`dmondrian._numba.mode.TESTED`;
:mod:`dmondrian._numba.jit` takes :mod:`dmondrian._numba.stock` with any other. Promises the same
results as there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.core.errors import NumbaTypeError
from numba.core.registry import CPUDispatcher
from numba.core.typing.templates import infer_global, make_intrinsic_template

from dmondrian._numba.kernel_cache import KernelCache
from dmondrian._numba.pipeline import KernelCompiler, PartCompiler

FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy"}
_PART = {
    **FLAGS, "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
    "_nrt": False,  # no counts of references
}  # fmt: skip
HOOK = {**_PART, "pipeline_class": PartCompiler}  # options of an implementation of a hook


class _Kernel(CPUDispatcher):
    """A kernel as Python sees it; of one that was kept there is nothing that others could call."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        raise NumbaTypeError(f"{self.__name__} is a kernel: what is called by others is `inline`")

    def entry(self, arguments: tuple[Any, ...]) -> Any:
        """Return what is called with arguments of these types."""
        return self.compile(tuple(self.typeof_pyval(argument) for argument in arguments))


def kernel(function: Callable[..., Any]) -> Any:
    """Return a function for Python to call."""
    options = {"nopython": True, **FLAGS, "no_cfunc_wrapper": True}
    compiled = _Kernel(function, targetoptions=options, pipeline_class=KernelCompiler)
    compiled._cache = KernelCache(function)
    return compiled


def _of_any_number(kind: Any) -> Any:
    """Return the type of which a constant is; of whole numbers the widest."""
    if isinstance(kind, (types.IntegerLiteral, types.BooleanLiteral)):
        kind = types.unliteral(kind)
    return types.int64 if kind == types.int32 else kind


class _Part(CPUDispatcher):
    """A part as kernels see it; called from Python it is compiled on its own."""

    @functools.cached_property
    def _alone(self) -> Any:
        return numba.njit(**FLAGS)(self.py_func)

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres  # for kernels, not for Python

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile for any number, where Numba would for each constant anew."""
        args = [_of_any_number(kind) for kind in args]
        return super().get_call_template(args, {k: _of_any_number(kind) for k, kind in kws.items()})

    def _compile_for_args(self, *args: Any, **kwargs: Any) -> Any:
        return self._alone  # Numba calls it with these arguments


def part(function: Callable[..., Any], *, is_copied: bool = True, allocates: bool = False) -> Any:
    """Return a function for kernels to call."""
    options = {"nopython": True, **_PART, "forceinline": is_copied, "_nrt": allocates}
    return _Part(function, targetoptions=options, pipeline_class=PartCompiler)


def replace(stub: Callable[..., Any], define: Callable[..., Any]) -> None:
    """Have kernels call what is defined where they name ``stub``.

    Arguments are converted to its signature. An ``overload`` would be a part for each type.
    """
    template = make_intrinsic_template(stub, define, stub.__name__)
    infer_global(stub, types.Function(template))

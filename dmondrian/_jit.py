"""The one door to Numba: compile flags, the disk cache and policies chosen by type.

Relies on Numba's ``overload`` and on its file cache. Promises: every kernel is
compiled with the same flags (``nogil``, no ``fastmath``: the order of additions
decides a tree); a cached kernel is used only with the package sources and flags it was
compiled from; functions that only kernels call are optimised and assembled there alone;
the same source runs as plain Python under ``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import config, types
from numba.core.errors import NumbaError, NumbaTypeError
from numba.core.registry import CPUDispatcher
from numba.core.typing.templates import infer_global, make_intrinsic_template
from numba.extending import overload

from dmondrian._cache import KernelCache
from dmondrian._compilers import KernelCompiler, PartCompiler
from dmondrian.errors import ParameterError

_FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy"}
_KERNELS: list[Any] = []  # that were declared so far


class _Kernel(CPUDispatcher):
    """A kernel as Python sees it; of one that was kept there is nothing that others could call."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        raise NumbaTypeError(f"{self.__name__} is a kernel: what is called by others is `inner`")


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point: called from Python, without the GIL, cached on disk."""
    if config.DISABLE_JIT:
        return function
    told = {"nopython": True, **_FLAGS, "no_cfunc_wrapper": True}
    compiled = _Kernel(function, targetoptions=told, pipeline_class=KernelCompiler)
    compiled._cache = KernelCache(function)
    _KERNELS.append(compiled)
    return compiled


def entry_of(compiled: Any, arguments: tuple[Any, ...]) -> Any:
    """Return what a kernel is compiled to for arguments of these types.

    Called with such arguments it does what the kernel does. It asks for the type of none, which
    for tuples of tuples takes longer than a row takes to be learned; it would take others for what
    they are not, so the caller keeps the arguments and changes what is in their arrays.
    """
    if config.DISABLE_JIT:
        return compiled
    return compiled.compile(tuple(compiled.typeof_pyval(argument) for argument in arguments))


def compilations() -> dict[str, int]:
    """Return how often this process had to compile kernels, by their dotted names."""
    found: Counter[str] = Counter()
    for each in _KERNELS:
        found[f"{each.__module__}.{each.__qualname__}"] += each.stats.cache_misses.total()
    return dict(+found)


@functools.lru_cache(maxsize=64)
def elementwise(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Compile a user's function of floats for arrays; nothing is kept on disk.

    What is returned raises ParameterError where the function cannot be compiled, or fails.
    """
    plain = getattr(function, "py_func", function)
    is_compiled = inspect.isfunction(plain) and not config.DISABLE_JIT  # math.log is not
    called = numba.vectorize(plain) if is_compiled else np.vectorize(plain, otypes=[float])

    def checked(*args: Any) -> np.ndarray:
        name = f"{getattr(plain, '__name__', plain)!s}"
        try:
            return np.asarray(called(*args), np.float64)
        except NumbaError as error:
            reason = str(error).strip().splitlines()
            told = " ".join(line.strip() for line in reason if line.strip())[:300]
            raise ParameterError(
                f"your function {name} cannot be compiled for {len(args)} floats ({told}): use "
                "numbers, math and NumPy functions of numbers alone, or give a functools.partial "
                "of it, which is called from Python, slowly"
            ) from error
        except Exception as error:  # whatever a user's function raises
            raise ParameterError(
                f"your function {name} failed for some floats ({type(error).__name__}: {error}): "
                "it should return a number for all, which may be inf or nan"
            ) from error

    return checked


_PART = {
    **_FLAGS, "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
    "_nrt": False,  # no counts of references
}  # fmt: skip


def _of_any_number(kind: Any) -> Any:
    """Return the type of which a constant is; of whole numbers the widest."""
    if isinstance(kind, (types.IntegerLiteral, types.BooleanLiteral)):
        kind = types.unliteral(kind)  # type: ignore[attr-defined]  # Numba's hints omit it
    return types.int64 if kind == types.int32 else kind


class _Part(CPUDispatcher):
    """A part as kernels see it; called from Python it is compiled on its own."""

    @functools.cached_property
    def _alone(self) -> Any:
        return numba.njit(**_FLAGS)(self.py_func)

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres  # for kernels, not for Python

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile for any number, where Numba would for each constant anew."""
        args = [_of_any_number(kind) for kind in args]
        return super().get_call_template(args, {k: _of_any_number(kind) for k, kind in kws.items()})

    def _compile_for_args(self, *args: Any, **kwargs: Any) -> Any:
        return self._alone  # Numba calls it with these arguments


def _part(function: Callable[..., Any], **options: bool) -> Any:
    if config.DISABLE_JIT:
        return function
    told = {"nopython": True, **_PART, **options}
    return _Part(function, targetoptions=told, pipeline_class=PartCompiler)


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; it is cached with its callers.

    It may make no arrays, and those that it returns are borrowed: where they lie in an array of a
    kernel's own, that has to be handed over borrowed (``dmondrian._memory.borrow``).
    """
    return _part(function)


def apart(function: Callable[..., Any]) -> Any:
    """Compile a function as :func:`inner` does, with registers of its own: a call, not a copy."""
    return _part(function, forceinline=False)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile a function as :func:`apart` does, that may make arrays; it must not return any."""
    return _part(function, forceinline=False, _nrt=True)


def overload_part(stub: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return Numba's ``overload`` for implementations that only kernels call."""
    return overload(stub, jit_options={**_PART, "pipeline_class": PartCompiler}, **options)


def instead_of(stub: Callable[..., Any]) -> Callable[..., Any]:
    """Have kernels call what is defined, as for Numba's ``intrinsic``, where they name ``stub``.

    Arguments become what its signature says. An ``overload`` would be a part for each type.
    """

    def register(define: Callable[..., Any]) -> Callable[..., Any]:
        template = make_intrinsic_template(stub, define, stub.__name__)
        infer_global(stub, types.Function(template))
        return define

    return register


class Hook:
    """A question that the loops ask of a policy, answered by the policy's type.

    Calling the stub from a kernel compiles to the registered implementation of the
    first argument's NamedTuple type; from Python it looks the implementation up.
    """

    def __init__(self, stub: Callable[..., Any]) -> None:
        self.name = stub.__name__
        self.implementations: dict[type, Callable[..., Any]] = {}

    def find(self, policy: type) -> Callable[..., Any]:
        try:
            return self.implementations[policy]
        except KeyError:
            message = f"policy {policy.__name__} does not implement {self.name!r}"
            raise NotImplementedError(message) from None  # a policy may leave hooks out


def hook(stub: Callable[..., Any]) -> Any:
    """Declare a hook; ``stub`` gives its name, signature and docstring."""
    declared = Hook(stub)

    @functools.wraps(stub)
    def call(*args: Any) -> Any:
        return declared.find(type(args[0]))(*args)

    def resolve(*args: Any) -> Callable[..., Any]:
        policy = args[0]
        if not isinstance(policy, types.BaseNamedTuple):  # type: ignore[attr-defined]  # likewise
            raise TypeError(f"{declared.name} expects a policy tuple, got {policy}")
        return declared.find(policy.instance_class)

    resolve.__signature__ = inspect.signature(stub)  # type: ignore[attr-defined]  # read by overload
    call.declared = declared  # type: ignore[attr-defined]  # read by implements
    if not config.DISABLE_JIT:
        overload_part(call, strict=False)(resolve)
    return call


def implements(declared: Any, policy: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the answer of ``policy`` to a hook."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        declared.declared.implementations[policy] = function
        return function

    return register

"""Kernels and the functions they call: compile flags, and policies chosen by type.

Relies on Numba's ``overload``; how the rest is compiled is up to :mod:`dmondrian._numba.tuned` or
:mod:`dmondrian._numba.stock`. Promises: every kernel is compiled with the same flags (``nogil``, no
``fastmath``: the order of additions decides a tree); a cached kernel is used only with the package
sources and flags it was compiled from; the same source runs as plain Python under
``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import config, types
from numba.core.errors import NumbaError
from numba.extending import overload

from dmondrian._numba.mechanisms import uses
from dmondrian._numba.mode import is_stock
from dmondrian.errors import ParameterError

if is_stock():
    from dmondrian._numba import stock as _mode
else:
    from dmondrian._numba import tuned as _mode  # type: ignore[no-redef]  # the same functions

_KERNELS: list[Any] = []  # that were declared so far


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point: called from Python, without the GIL, cached on disk."""
    if config.DISABLE_JIT:
        return function
    compiled = _mode.kernel(function)
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
    return compiled.entry(arguments)


def is_compiling() -> bool:
    """Return whether kernels are compiled: not under ``NUMBA_DISABLE_JIT=1``."""
    return not config.DISABLE_JIT


def compilations() -> dict[str, int]:
    """Return how often this process had to compile kernels, by their dotted names."""
    counts: Counter[str] = Counter()
    for each in _KERNELS:
        counts[f"{each.__module__}.{each.__qualname__}"] += each.stats.cache_misses.total()
    return dict(+counts)


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
            short = " ".join(line.strip() for line in reason if line.strip())[:300]
            raise ParameterError(
                f"your function {name} cannot be compiled for {len(args)} floats ({short}): use "
                "numbers, math and NumPy functions of numbers alone, or give a functools.partial "
                "of it, which is called from Python, slowly"
            ) from error
        except Exception as error:  # whatever a user's function raises
            raise ParameterError(
                f"your function {name} failed for some floats ({type(error).__name__}: {error}): "
                "it should return a number for all, which may be inf or nan"
            ) from error

    return checked


def _part(function: Callable[..., Any], **options: bool) -> Any:
    return function if config.DISABLE_JIT else _mode.part(function, **options)


def inline(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; it is cached with its callers.

    It may make no arrays, and those that it returns are borrowed: where they lie in an array of a
    kernel's own, that has to be handed over borrowed (``dmondrian._numba.intrinsics.unowned``).
    """
    return _part(function)


def noinline(function: Callable[..., Any]) -> Any:
    """Compile a function as :func:`inline` does, with registers of its own: a call, not a copy."""
    return _part(function, is_copied=False)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile a function as :func:`noinline` does, that may make arrays; it must not return any."""
    return _part(function, is_copied=False, allocates=True)


def intrinsic(
    stub: Callable[..., Any], *, is_needed: bool = False, mechanism: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have kernels call what is defined, as for Numba's ``intrinsic``, where they name ``stub``.

    Without the ``mechanism`` it belongs to, and in the stock mode, ``stub`` itself is compiled,
    unless what is defined ``is_needed``: then Numba could not.
    """

    def register(define: Callable[..., Any]) -> Callable[..., Any]:
        if config.DISABLE_JIT:
            return define
        if is_needed or not (is_stock() or (mechanism and not uses(mechanism))):
            _mode.replace(stub, define)
        else:
            overload(stub, jit_options=_mode.HOOK)(_itself(stub))
        return define

    return register


def _itself(stub: Callable[..., Any]) -> Callable[..., Any]:
    """Return what answers an ``overload`` by the function itself."""

    def resolve(*args: Any) -> Any:
        return stub

    resolve.__signature__ = inspect.signature(stub)  # type: ignore[attr-defined]  # read by overload
    return resolve


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
        if not isinstance(policy, types.BaseNamedTuple):
            raise TypeError(f"{declared.name} expects a policy tuple, got {policy}")
        return declared.find(policy.instance_class)

    resolve.__signature__ = inspect.signature(stub)  # type: ignore[attr-defined]  # read by overload
    call.declared = declared  # type: ignore[attr-defined]  # read by implements
    if not config.DISABLE_JIT:
        overload(call, jit_options=_mode.HOOK, strict=False)(resolve)
    return call


def implements(declared: Any, policy: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the answer of ``policy`` to a hook."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        declared.declared.implementations[policy] = function
        return function

    return register

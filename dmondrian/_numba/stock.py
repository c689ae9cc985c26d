"""Kernels compiled by Numba's public interface alone: later compiled, slower, the same results.

``DMONDRIAN_NUMBA_STOCK=1`` chooses it, and any version of Numba whose private parts were not
tested. What :func:`dmondrian._numba.jit.intrinsic` would replace by instructions of our own is
compiled from Python.

Relies on ``njit``, ``overload`` and ``intrinsic``. Promises the results of
:mod:`dmondrian._numba.tuned`, to the last bit, but for
:mod:`dmondrian.tree.simd.box_distance_bound`, which documents what may differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from typing import Any

import numba
from numba import config
from numba.core import event
from numba.extending import intrinsic, overload

from dmondrian._numba.cache import (
    TURN_SECONDS,
    announce,
    cache_folder,
    copy_read_only,
    locked,
    warn_of_no_cache,
)

FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy"}
HOOK = FLAGS  # options of an implementation of a hook


class _Announcing(event.Listener):
    """Listener that announces the first compilation of the process."""

    def on_start(self, event: Any) -> None:
        """Announce the compilation that begins."""
        announce()

    def on_end(self, event: Any) -> None:
        """Do nothing: the end is not announced."""


class _Kernel:
    """A kernel as Python sees it.

    Numba writes the index of a kernel's files without a lock, so that two processes might give two
    signatures one file: each compiles, and reads, while it holds a lock.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__, self.__doc__ = function.__module__, function.__doc__
        name = f"{function.__module__}.{function.__qualname__}"
        self._lock = f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.turn"
        self._compiled: Any = None
        self._ready: dict[Any, Any] = {}

    def _declare(self) -> Any:
        """Return Numba's dispatcher, whose files lie in our folder."""
        known = config.CACHE_DIR
        try:
            folder = cache_folder()
            copy_read_only()
            config.CACHE_DIR = str(folder)
            # Numba refuses to cache where it cannot write.
            return numba.njit(cache=os.access(folder, os.W_OK), **FLAGS)(self.py_func)
        finally:
            config.CACHE_DIR = known

    @property
    def compiled(self) -> Any:
        """Numba's dispatcher, made when it is first used."""
        if self._compiled is None:
            self._compiled = self._declare()
        return self._compiled

    @property
    def stats(self) -> Any:
        """Numbers of kernels found on disk, and of those that were not, by signature."""
        return self.compiled.stats

    @property
    def signatures(self) -> list[Any]:
        """Types that it was compiled for."""
        return list(self.compiled.signatures)

    def entry(self, arguments: tuple[Any, ...]) -> Any:
        """Return what is called with arguments of these types."""
        kinds = tuple(numba.typeof(argument) for argument in arguments)
        compiled = self._ready.get(kinds)
        if compiled is None:
            compiled = self._ready[kinds] = self._compile(kinds)
        return compiled

    def _compile(self, kinds: tuple[Any, ...]) -> Any:
        """Return what was compiled, or found on disk."""
        with contextlib.ExitStack() as turn:
            with contextlib.suppress(OSError):  # without it all compile: no harm but the time
                turn.enter_context(locked(cache_folder() / self._lock, TURN_SECONDS))
            try:
                with event.install_listener("numba:compile", _Announcing()):
                    return self.compiled.compile(kinds)
            except OSError as error:  # a full disk
                if kinds not in self.compiled.overloads:
                    raise
                warn_of_no_cache(error)
        return self.compiled.overloads[kinds].entry_point

    def __call__(self, *args: Any) -> Any:
        return self.entry(args)(*args)


def kernel(function: Callable[..., Any]) -> Any:
    """Return a function for Python to call."""
    return _Kernel(function)


def part(function: Callable[..., Any], *, is_copied: bool = True, allocates: bool = False) -> Any:
    """Return a function for kernels to call; whether it allocates, Numba finds out."""
    return numba.njit(forceinline=is_copied, **FLAGS)(function)


def replace(stub: Callable[..., Any], define: Callable[..., Any]) -> None:
    """Have kernels call what is defined where they name ``stub``."""
    defined = intrinsic(define)

    def resolve(*args: Any) -> Any:
        def call(*args):  # type: ignore[no-untyped-def]  # Numba reads it
            return defined(*args)

        return call

    overload(stub, jit_options=FLAGS, strict=False)(resolve)

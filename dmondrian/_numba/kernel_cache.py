"""Numba's file cache of kernels, safe for processes that add to it at the same time.

Relies on private parts of Numba's cache: :mod:`dmondrian._numba.tuned` alone imports this. Promises
that a cached kernel is used only with the package sources and flags it was compiled from, and that
processes which need the same code compile it once.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

from numba.core import caching
from numba.core.runtime.nrt import rtsys

from dmondrian._numba.cache import (
    TURN_SECONDS,
    announce,
    cache_folder,
    locked,
    read_only_folder,
    source_digest,
    warn_of_no_cache,
)


class _Locator(caching._CacheLocator):
    """Puts every kernel's cache into :func:`cache_folder`."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_func = py_func
        self._py_file = py_file  # Numba names it where it warns that a kernel cannot be kept

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return source_digest()

    def get_disambiguator(self) -> str:
        return str(self._py_func.__code__.co_firstlineno)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func, py_file)


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes: ClassVar[list[type]] = [_Locator]


class KernelCache(caching.Cache):
    """Numba's cache, for processes that add to it at the same time.

    Numba replaces each file atomically, but two processes that read the index together
    would give two signatures one file, and one of them another's code. Processes that need the
    same code compile it one at a time, so that all but the first find it.
    """

    _impl_class = _CacheImpl

    def __init__(self, py_func: Callable[..., Any]) -> None:
        super().__init__(py_func)
        self._found_in = [self._cache_file]
        if (folder := read_only_folder()) is not None:
            of_version = self._impl.filename_base, source_digest()
            self._found_in.append(caching.IndexDataCacheFile(str(folder), *of_version))
        self._turn = ExitStack()  # from a search in vain to the end of the compilation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._turn.close()  # of a compilation that failed
        overload = self._read(sig, target_context)
        if overload is None:
            announce()
            key = self._index_key(sig, target_context.codegen())
            code = repr((self._impl.filename_base, key))
            name = hashlib.sha256(code.encode()).hexdigest()[:16]
            # Without turns, or when the other takes too long, all compile: no harm but the time.
            with suppress(OSError):
                path = cache_folder() / f"{name}.turn"
                self._turn.enter_context(locked(path, TURN_SECONDS))
            overload = self._read(sig, target_context)
            if overload is not None:
                self._turn.close()
            else:  # what is compiled stays: looking for garbage in it would only take time
                self._turn.callback(gc.set_threshold, *gc.get_threshold())
                gc.set_threshold(200_000, 20, 100)
        return overload

    def _read(self, sig: Any, target_context: Any) -> Any:
        """Return a kernel read from the cache, or None; loads no parts of Numba but its memory's.

        That takes longer than the kernels themselves, which need its memory management alone;
        whoever compiles loads the rest.
        """
        rtsys.initialize(target_context)
        key = self._index_key(sig, target_context.codegen())
        for files in self._found_in:
            with suppress(OSError):  # a folder that may not be read has nothing
                if (data := files.load(key)) is not None:
                    return self._impl.rebuild(target_context, data)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            with self._turn, locked(cache_folder() / "lock"):
                super().save_overload(sig, data)
        except OSError as error:  # a full disk, or a lock that a stopped process holds
            warn_of_no_cache(error)

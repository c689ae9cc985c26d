"""The disk cache of compiled kernels: where it is, what it knows code by, and who may write it.

Relies on Numba's file cache. Promises that a cached kernel is used only with the package sources
and flags it was compiled from, and that processes which need the same code compile it once.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from numba.core import caching, config
from numba.core.runtime.nrt import rtsys

_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None
_PACKAGE = Path(__file__).parent
_LOCK_SECONDS = 20.0
_TURN_SECONDS = 60.0  # a kernel takes some seconds, and more where the processors are busy
_KERNEL_FOLDERS = ("core", "growth", "stats", "losses", "rules")


@functools.cache
def source_digest() -> str:
    """Digest of all files that can hold kernel code, and of the flags that change it.

    Numba looks at the time stamp of one file only, so an edit of a file that holds
    nothing but overloads would leave stale code in the cache; bounds checks would be
    silently absent from code cached without them.
    """
    digest = hashlib.sha256(f"boundscheck={config.BOUNDSCHECK}".encode())
    files = [_PACKAGE / name for name in ("_compilers.py", "_jit.py", "_memory.py")]
    for folder in _KERNEL_FOLDERS:
        files += sorted((_PACKAGE / folder).glob("*.py"))
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Folder of the compiled kernels of this version of the sources.

    ``DMONDRIAN_CACHE_DIR`` overrides the root, else ``XDG_CACHE_HOME``, else
    ``~/.cache``, else a folder of this user in the system's temporary folder.
    """
    root = os.environ.get("DMONDRIAN_CACHE_DIR")
    if root is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = os.path.join(base, "dmondrian")
    folder = Path(root) / "kernels" / source_digest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # a home without write permission: fall through to the temporary folder
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"dmondrian-{user}" / "kernels" / source_digest()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def copy_cache(root: Path) -> None:
    """Copy the compiled kernels to a cache of its own, whose root would be ``root``.

    Raises
    ------
    OSError
        If they cannot be copied, or another process keeps writing to them.
    """
    source = cache_folder()
    with locked(source / "lock"):  # a kernel that is being written has files that vanish
        told = shutil.ignore_patterns("*.turn")  # who compiles here says nothing there
        shutil.copytree(source, root / "kernels" / source.name, ignore=told)


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
        self._turn = ExitStack()  # from a search in vain to the end of the compilation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._turn.close()  # of a compilation that failed
        found = self._read(sig, target_context)
        if found is None:
            _announce()
            key = self._index_key(sig, target_context.codegen())
            code = repr((self._impl.filename_base, key))
            name = hashlib.sha256(code.encode()).hexdigest()[:16]
            # Without turns, or when the other takes too long, all compile: no harm but the time.
            with suppress(OSError):
                path = cache_folder() / f"{name}.turn"
                self._turn.enter_context(locked(path, _TURN_SECONDS))
            found = self._read(sig, target_context)
            if found is not None:
                self._turn.close()
            else:  # a tenth of the time would go into looking for garbage
                self._turn.callback(gc.set_threshold, *gc.get_threshold())
                gc.set_threshold(200_000, 20, 100)
        return found

    def _read(self, sig: Any, target_context: Any) -> Any:
        """Do what Numba's ``load_overload`` does, but for loading all that it could compile.

        That takes longer than the kernels themselves, which need its memory management alone;
        whoever compiles loads the rest.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            with self._turn, locked(cache_folder() / "lock"):
                super().save_overload(sig, data)
        except OSError as error:  # a full disk, or a lock that a stopped process holds
            warnings.warn(
                f"a compiled kernel could not be kept in {cache_folder()} ({error}): the next "
                "process compiles it again; make room there or set DMONDRIAN_CACHE_DIR",
                stacklevel=2,
            )


@functools.cache
def _announce() -> None:
    """Tell once in a process that somebody has to wait for a compilation.

    By the logger "dmondrian", at the level that is seen without any set-up of logging.
    """
    logging.getLogger("dmondrian").warning(
        "compiling kernels for this machine, once: some seconds each, 10 to 30 for a forest; they "
        "are kept in %s (`dmondrian warm` compiles all of them ahead of time)",
        cache_folder(),
    )


@contextmanager
def locked(path: Path, seconds: float | None = None) -> Iterator[None]:
    """Hold a lock file among the processes of this machine; no lock where there is none.

    Raises
    ------
    TimeoutError
        Another process holds it for longer than this, by default than a kernel takes to be
        written.
    """
    if _fcntl is None:
        yield
        return
    end = time.monotonic() + (_LOCK_SECONDS if seconds is None else seconds)
    with path.open("w") as file:
        while True:
            try:
                _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
                break  # released when the file is closed
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(f"{path} is locked by another process") from None
                time.sleep(0.01)
        yield

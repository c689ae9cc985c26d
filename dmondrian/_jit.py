"""The one door to Numba: compile flags, the disk cache and policies chosen by type.

Relies on Numba's ``overload`` and on its file cache. Promises: every kernel is
compiled with the same flags (``nogil``, no ``fastmath``: the order of additions
decides a tree); a cached kernel is used only with the package sources and flags it was
compiled from; functions that only kernels call are optimised and assembled there alone;
the same source runs as plain Python under ``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numba
import numpy as np
from numba import _dynfunc
from numba.core import caching, config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.errors import NumbaError
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.core.types import BaseNamedTuple  # type: ignore[attr-defined]  # Numba's hints omit it
from numba.extending import overload

from dmondrian.errors import ParameterError

_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None
_PACKAGE = Path(__file__).parent
_LOCK_SECONDS = 20.0
_FLAGS = {"nogil": True, "fastmath": False, "error_model": "numpy"}
_KERNELS: list[Any] = []  # that were declared so far
_KERNEL_FOLDERS = ("core", "growth", "stats", "losses", "rules")


@functools.cache
def source_digest() -> str:
    """Digest of all files that can hold kernel code, and of the flags that change it.

    Numba looks at the time stamp of one file only, so an edit of a file that holds
    nothing but overloads would leave stale code in the cache; bounds checks would be
    silently absent from code cached without them.
    """
    digest = hashlib.sha256(f"boundscheck={config.BOUNDSCHECK}".encode())
    files = [_PACKAGE / "_jit.py", _PACKAGE / "_memory.py"]
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
    with _locked(source / "lock"):  # a kernel that is being written has files that vanish
        shutil.copytree(source, root / "kernels" / source.name)


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


class _KernelCache(caching.Cache):
    """Numba's cache, for processes that add to it at the same time.

    Numba replaces each file atomically, but two processes that read the index together
    would give two signatures one file, and one of them another's code.
    """

    _impl_class = _CacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            _announce()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            with _locked(cache_folder() / "lock"):
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
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file among the processes of this machine; no lock where there is none.

    Raises
    ------
    TimeoutError
        Another process holds it for longer than a kernel takes to be written.
    """
    if _fcntl is None:
        yield
        return
    end = time.monotonic() + _LOCK_SECONDS
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


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point: called from Python, without the GIL, cached on disk."""
    compiled = numba.njit(**_FLAGS)(function)
    if not config.DISABLE_JIT:
        compiled._cache = _KernelCache(function)
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


class _PartLibrary(JITCodeLibrary):
    """A part of kernels and the parts that it calls, as LLVM's language alone.

    Numba would optimise and assemble each part for itself too, and run neither: half of the
    time of a compilation.
    """

    def _optimize_final_module(self) -> None:
        """Leave that to the kernels."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=True)
class _EnterPart(LoweringPass):
    """Lets callers find a part under a key, as Numba does with what it has assembled."""

    _name = "enter_part"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        lowered = state.cr
        names = lowered.fndesc.lookup_module(), lowered.fndesc.qualname, "a part of kernels"
        key = _dynfunc.make_function(*names, 0, lowered.env, (state.library,))  # 0: no code
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state.cr = lowered._replace(cfunc=key)
        if not state.flags.forceinline:
            library = state.library._final_module
            library.get_function(lowered.fndesc.llvm_func_name).add_function_attribute("noinline")
        return False


class _PartCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        state = self.state
        state.flags.no_compile = True
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        passes = DefaultPassBuilder.define_nopython_pipeline(state)
        passes.add_pass_after(_EnterPart, NativeLowering)
        passes.finalize()
        return [passes]


_PART = {**_FLAGS, "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class _Part(CPUDispatcher):
    """A part as kernels see it; called from Python it is compiled on its own."""

    @functools.cached_property
    def _alone(self) -> Any:
        return numba.njit(**_FLAGS)(self.py_func)

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres  # for kernels, not for Python

    def _compile_for_args(self, *args: Any, **kwargs: Any) -> Any:
        return self._alone  # Numba calls it with these arguments


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; it is cached with its callers."""
    if config.DISABLE_JIT:
        return function
    options = {"nopython": True, **_PART}
    return _Part(function, targetoptions=options, pipeline_class=_PartCompiler)


def apart(function: Callable[..., Any]) -> Any:
    """Compile a function as :func:`inner` does, with registers of its own: a call, not a copy."""
    if config.DISABLE_JIT:
        return function
    options = {"nopython": True, **_PART, "forceinline": False}
    return _Part(function, targetoptions=options, pipeline_class=_PartCompiler)


def overload_part(stub: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return Numba's ``overload`` for implementations that only kernels call."""
    return overload(stub, jit_options={**_PART, "pipeline_class": _PartCompiler}, **options)


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
        if not isinstance(policy, BaseNamedTuple):
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

"""The disk cache of compiled kernels: where it is, what it knows code by, and who may write it.

Relies on file locks of locket, which distributed needs too: it locks on Windows as well, and its
import takes less than a tenth of filelock's. Promises one folder for each version of the sources
and of the flags.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import locket
from numba import config

from dmondrian._numba.mechanisms import left_out_of_code

_PACKAGE = Path(__file__).parents[1]
_LOCK_SECONDS = 20.0
TURN_SECONDS = 120.0
"""How long a process waits for another that compiles the same kernel, before it compiles it, too.

A kernel takes some seconds, and more where the processors are busy."""
_KERNEL_FOLDERS = ("_numba", "tree", "stats", "losses", "rules", "growth")


def kernel_files() -> list[Path]:
    """Return the sources that compiled code may be in, sorted.

    They are in one of a few folders, or named ``*_kernels.py`` beside the module that calls
    them.
    """
    files = set(_PACKAGE.rglob("*_kernels.py"))
    for folder in _KERNEL_FOLDERS:
        files.update((_PACKAGE / folder).rglob("*.py"))
    return sorted(files)


@functools.cache
def source_digest() -> str:
    """Digest of all files that can hold kernel code, and of the flags that change it.

    Numba looks at the time stamp of one file only, so an edit of a file that holds
    nothing but overloads would leave stale code in the cache; bounds checks would be
    silently absent from code cached without them.
    """
    flags = f"boundscheck={config.BOUNDSCHECK} {left_out_of_code()}"
    digest = hashlib.sha256(flags.encode())
    for file in kernel_files():
        digest.update(file.relative_to(_PACKAGE).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Folder that kernels compiled of this version of the sources are kept in.

    ``DMONDRIAN_CACHE_DIR`` overrides the root, else ``XDG_CACHE_HOME``, else ``~/.cache``. Where
    that cannot be written, it is a folder of this user in the system's temporary folder; and where
    there is none either, the first, in which no kernel is kept.
    """
    first = _first_folder()
    return first if _can_write(first) else _temporary_folder() or first


def read_only_folder() -> Path | None:
    """Folder of kernels that were compiled for others, as for an image, and cannot be written."""
    first = _first_folder()
    return None if cache_folder() == first else first


def copy_read_only() -> None:
    """Copy the kernels that were compiled for others into the folder of this user, once.

    Numba's public interface reads one folder alone. A link would be followed long after the folder
    of others has other kernels, or is another's.
    """
    if (theirs := read_only_folder()) is not None:
        copy_kernels(theirs, cache_folder())


@functools.cache
def copy_kernels(theirs: Path, own: Path) -> None:
    """Copy the files of functions of which a folder has none.

    An index numbers the files of signatures: that of one folder would give another signature's
    code of the other.
    """
    with suppress(OSError), locked(own / "lock"):  # what is not copied is compiled
        for index in theirs.rglob("*.nbi"):
            folder, name = own / index.parent.relative_to(theirs), f"{glob.escape(index.stem)}."
            if any(folder.glob(f"{name}*")):
                continue
            with suppress(OSError):  # it may not be read, or the disk is full
                folder.mkdir(parents=True, exist_ok=True)
                for file in (index, *index.parent.glob(f"{name}*.nbc")):  # an index alone is safe
                    _copy_whole(file, folder / file.name)


def _copy_whole(file: Path, to: Path) -> None:
    """Copy a file, which nobody reads before it is whole."""
    part = to.with_name(f"{to.name}.tmp.{os.getpid()}")
    try:
        shutil.copyfile(file, part)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def _first_folder() -> Path:
    root = os.environ.get("DMONDRIAN_CACHE_DIR")
    if root is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = os.path.join(base, "dmondrian")
    return Path(root) / "kernels" / source_digest()


def _can_write(folder: Path) -> bool:
    """Return whether a folder can be written, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _temporary_folder() -> Path | None:
    """Folder among the temporary files; None if there is none that others cannot write."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    try:
        root = Path(tempfile.gettempdir()) / f"dmondrian-{user}"
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError:
        return None
    # Kernels are loaded as they are: another user who made the folder could have any code run.
    is_own = stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_IWOTH
    if hasattr(os, "getuid") and not (is_own and status.st_uid == os.getuid()):
        return None
    folder = root / "kernels" / source_digest()
    return folder if _can_write(folder) else None


def copy_cache(root: Path) -> None:
    """Copy the compiled kernels to a cache of its own, whose root would be ``root``.

    Raises
    ------
    OSError
        If they cannot be copied, or another process keeps writing to them.
    """
    source = cache_folder()
    with locked(source / "lock"):  # a kernel that is being written has files that vanish
        # Of processes that compile into this folder; Windows reads no locked file.
        locks = shutil.ignore_patterns("*.turn", "lock")
        shutil.copytree(source, root / "kernels" / source.name, ignore=locks)


@functools.cache
def announce() -> None:
    """Log, once in a process, that a compilation has to be waited for.

    By the logger "dmondrian", at the level that is seen without any set-up of logging.
    """
    folder = cache_folder()
    text = (
        "compiling kernels for this machine, once: some seconds each, 10 to 30 for a forest; they "
    )
    if os.access(folder, os.W_OK):
        text += "are kept in %s (`dmondrian warm` compiles all of them ahead of time)"
    else:
        text += "cannot be kept in %s: set DMONDRIAN_CACHE_DIR to a folder that can be written"
    logging.getLogger("dmondrian").warning(text, folder)


not_kept: list[OSError] = []
"""Why kernels that this process compiled are not kept."""


def warn_of_no_cache(error: OSError) -> None:
    """Warn that a kernel is not kept: of a full disk, or a lock that a stopped process holds."""
    not_kept.append(error)
    warnings.warn(
        f"a compiled kernel could not be kept in {cache_folder()} ({error}): the next process "
        "compiles it again; free some space there or set DMONDRIAN_CACHE_DIR",
        stacklevel=3,
    )


@contextmanager
def locked(path: Path, seconds: float | None = None) -> Iterator[None]:
    """Hold a lock file among the threads and processes of this machine.

    Raises
    ------
    TimeoutError
        Another holds it for longer than this, by default than a kernel takes to be written.
    OSError
        The file cannot be written, or the file system has no locks.
    """
    timeout = _LOCK_SECONDS if seconds is None else seconds
    lock = locket.lock_file(str(path), timeout=timeout, retry_period=0.01)
    try:
        lock.acquire()
    except locket.LockError:
        raise TimeoutError(f"{path} is locked by another process") from None
    try:
        yield
    finally:
        lock.release()

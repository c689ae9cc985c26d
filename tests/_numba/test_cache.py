"""The kernel cache under processes that share it, parts of kernels, hooks nobody answers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from llvmlite import binding
from numba import config, int64
from numba.core.errors import TypingError
from numba.core.registry import cpu_target

import dmondrian
from dmondrian._numba import cache as _cache
from dmondrian._numba import jit
from dmondrian._numba.mode import is_stock

OURS = pytest.mark.skipif(config.DISABLE_JIT or is_stock(), reason="our passes are not used")
KERNEL = """
import sys, time
from dmondrian._numba import jit
from numba.core import caching

save_index = caching.IndexDataCacheFile._save_index

def slow(self, overloads):  # between reading the index and writing it
    time.sleep(0.5)
    save_index(self, overloads)

caching.IndexDataCacheFile._save_index = slow

@jit.kernel
def twice(x):
    return x + x

kind = {"i": int, "f": float}[sys.argv[1]]
print(repr(twice(kind(2))), len(twice.stats.cache_hits), flush=True)
"""


@pytest.mark.parametrize("stock", ["0", pytest.param("1", marks=pytest.mark.thorough)])
@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_processes_that_compile_at_once_do_not_mix_up_their_code(
    tmp_path: Path, stock: str
) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL)
    root = str(Path(dmondrian.__file__).parents[1])
    env = {**os.environ, "DMONDRIAN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root}
    env["DMONDRIAN_NUMBA_STOCK"] = stock
    expected = {"i": "4", "f": "4.0"}

    def reported() -> dict[str, list[str]]:
        processes = {
            kind: subprocess.Popen(
                [sys.executable, str(script), kind], env=env, stdout=subprocess.PIPE, text=True
            )
            for kind in expected
        }
        outputs = {kind: p.communicate(timeout=120)[0].split() for kind, p in processes.items()}
        assert all(p.returncode == 0 for p in processes.values())
        return outputs

    assert {kind: words[0] for kind, words in reported().items()} == expected
    assert reported() == {
        kind: [value, "1"] for kind, value in expected.items()
    }  # all from the cache


TOGETHER = """
import sys, time
from pathlib import Path
from dmondrian._numba import jit as _jit, kernel_cache

keep = kernel_cache.KernelCache.save_overload

def slow(self, sig, data):  # all others have begun meanwhile
    time.sleep(0.5)
    keep(self, sig, data)

kernel_cache.KernelCache.save_overload = slow

@_jit.kernel
def square(x):
    return x * x

folder, number = Path(sys.argv[1]), sys.argv[2]
(folder / f"{number}.here").touch()
while len(list(folder.glob("*.here"))) < 3:
    time.sleep(0.01)
assert square(3) == 9
print(sum(_jit.compilations().values()), flush=True)
"""


@OURS
def test_processes_that_need_the_same_code_at_once_compile_it_once(tmp_path: Path) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(TOGETHER)
    root = str(Path(dmondrian.__file__).parents[1])
    env = {**os.environ, "DMONDRIAN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(number)],
            env=env, stdout=subprocess.PIPE, text=True,
        )
        for number in range(3)
    ]  # fmt: skip
    reported = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert sorted(reported) == ["0", "0", "1"]


@OURS
def test_nobody_waits_for_ever_for_another_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dmondrian._numba import kernel_cache  # private parts of Numba

    monkeypatch.setenv("DMONDRIAN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "TURN_SECONDS", 0.1)

    @jit.kernel
    def cube(x):
        return x * x * x

    first, second = kernel_cache.KernelCache(cube.py_func), kernel_cache.KernelCache(cube.py_func)
    for cache in (first, second):
        assert cache.load_overload((int64,), cpu_target.target_context) is None
    (path,) = _cache.cache_folder().glob("*.turn")
    with pytest.raises(TimeoutError), _cache.locked(path, 0.0):
        pass
    # A compilation that failed has let its turn go when the next one begins.
    monkeypatch.setattr(kernel_cache, "TURN_SECONDS", 1e6)
    assert first.load_overload((int64,), cpu_target.target_context) is None


@OURS
def test_a_cache_that_cannot_be_written_costs_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DMONDRIAN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_cache, "_LOCK_SECONDS", 0.1)

    @jit.kernel
    def thrice(x):
        return x + x + x

    with (
        _cache.locked(_cache.cache_folder() / "lock"),
        pytest.warns(UserWarning, match="free some space"),
    ):
        assert thrice(2) == 6
    assert thrice(2) == 6


OF_OTHERS = """
import os, sys, tempfile
from pathlib import Path
from dmondrian._numba import cache, jit

def make():
    @jit.kernel
    def twice(x):
        return x + x
    return twice

folder = Path(os.environ["DMONDRIAN_CACHE_DIR"])
assert make()(2) == 4
for path in (folder, *folder.rglob("*")):
    path.chmod(0o555 if path.is_dir() else int(sys.argv[2], 8))
if os.geteuid() == 0:
    os.setuid(65534)
tempfile.tempdir = sys.argv[1]
found = make()
assert found(2) == 4
print(found.stats.cache_hits.total(), end=" ")
assert found(2.5) == 5.0  # is compiled
again = make()
assert (again(2), again(2.5)) == (4, 5.0)
print(again.stats.cache_hits.total(), cache.cache_folder().is_relative_to(sys.argv[1]))
"""


@pytest.mark.parametrize("stock", ["0", "1"])
@pytest.mark.parametrize(("mode", "n_hits"), [("444", ["1", "2"]), ("0", ["0", "2"])])
@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.skipif(os.name != "posix", reason="permissions as on Unix")
def test_kernels_that_were_compiled_for_others_are_found_in_a_cache_that_is_read_only(
    stock: str, mode: str, n_hits: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, scratch = Path(place), Path(place, "scratch")
        folder.chmod(0o755)
        scratch.mkdir()
        scratch.chmod(0o777)
        script = folder / "kernel.py"
        script.write_text(OF_OTHERS)
        root = str(Path(dmondrian.__file__).parents[1])
        env = {**os.environ, "DMONDRIAN_CACHE_DIR": str(folder / "warm"), "PYTHONPATH": root}
        env["DMONDRIAN_NUMBA_STOCK"] = stock
        done = subprocess.run(
            [sys.executable, str(script), str(scratch), mode],
            env=env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        for path in (folder / "warm").rglob("*"):
            path.chmod(0o755)  # to be deleted
    assert done.stdout.split() == [*n_hits, "True"], done.stderr


@pytest.mark.parametrize("left", ["f.nbi", "f.1.nbc"])
def test_kernels_of_others_are_not_mixed_with_own_ones_of_other_numbers(
    tmp_path: Path, left: str
) -> None:
    theirs, own = tmp_path / "theirs" / "module", tmp_path / "own" / "module"
    for folder in (theirs, own):
        folder.mkdir(parents=True)
    for name in ("f.nbi", "f.1.nbc", "f.2.nbc", "g.nbi", "g.1.nbc"):
        (theirs / name).write_text(f"their {name}")
    (own / left).write_text("own")  # the rest was deleted
    _cache.copy_kernels(theirs.parent, own.parent)
    (theirs / "g.1.nbc").write_text("of another signature, later")
    assert {file.name: file.read_text() for file in own.iterdir()} == {
        left: "own", "g.nbi": "their g.nbi", "g.1.nbc": "their g.1.nbc",
    }  # fmt: skip


@OURS
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="not Linux")
def test_where_nothing_can_be_written_kernels_are_compiled_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DMONDRIAN_CACHE_DIR", "/proc/kernels")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")

    @jit.kernel
    def fourfold(x):
        return 4 * x

    with pytest.warns(UserWarning, match="could not be kept in /proc/kernels"):
        assert fourfold(2) == 8


@OURS
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="not Linux")
def test_no_kernel_is_loaded_from_a_temporary_folder_that_others_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DMONDRIAN_CACHE_DIR", "/proc/kernels")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"dmondrian-{os.getuid()}"
    assert _cache.cache_folder().is_relative_to(own)
    assert own.stat().st_mode & 0o077 == 0
    own.chmod(0o777)
    assert not _cache.cache_folder().is_relative_to(tmp_path)
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    assert not _cache.cache_folder().is_relative_to(tmp_path)


@OURS
def test_a_cache_is_copied_while_nobody_writes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DMONDRIAN_CACHE_DIR", str(tmp_path / "from"))
    monkeypatch.setattr(_cache, "_LOCK_SECONDS", 0.1)

    @jit.kernel
    def square(x):
        return x * x

    assert square(3) == 9
    folder = _cache.cache_folder()
    _cache.copy_cache(tmp_path / "to")
    copied = {f.name: f.read_bytes() for f in folder.iterdir() if f.suffix not in (".turn", "")}
    assert len(copied) == 2  # index, code
    for file in (tmp_path / "to" / "kernels" / folder.name).iterdir():
        assert copied.pop(file.name) == file.read_bytes()
    assert not copied
    with _cache.locked(folder / "lock"), pytest.raises(OSError, match="locked by another process"):
        _cache.copy_cache(tmp_path / "again")
    assert not (tmp_path / "again").exists()


@OURS
def test_parts_of_kernels_are_not_assembled_but_can_be_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DMONDRIAN_CACHE_DIR", str(tmp_path))  # else an earlier run's code is found

    @jit.inline
    def halve(x):
        return x / 2

    @jit.kernel
    def quarter(x):
        return halve(halve(x))

    assert quarter(3.0) == 0.75
    (part,) = halve.overloads.values()
    engine = part.library.codegen._engine
    assert not engine.is_symbol_defined(part.fndesc.llvm_func_name)
    (whole,) = quarter.overloads.values()
    assert engine.is_symbol_defined(whole.fndesc.llvm_func_name)
    assert halve(3.0) == 1.5  # from Python, with the types that the kernel gave it
    assert halve(3) == 1.5


@OURS
def test_kernels_are_kept_without_what_they_were_assembled_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DMONDRIAN_CACHE_DIR", str(tmp_path))

    def power(x, n):
        done = 1.0
        for _ in range(n):
            done *= x
        return done

    raised = jit.kernel(power)
    assert raised(3.0, 4) == 81.0
    (found,) = raised.overloads.values()
    _, kind, (_, kept) = found.library.serialize_using_object_code()
    bodies = {
        function.name: [str(each) for block in function.blocks for each in block.instructions]
        for function in binding.parse_bitcode(kept).functions
    }
    entries = {found.fndesc.llvm_func_name, found.fndesc.llvm_cpython_wrapper_name}
    assert kind == "object"
    assert entries <= set(bodies)
    assert {len(body) for body in bodies.values()} == {1}
    again = jit.kernel(power)  # as another process finds it
    assert again(3.0, 4) == 81.0
    assert again.stats.cache_hits.total() == 1


@OURS
def test_a_kernel_that_another_calls_is_refused() -> None:
    called = jit.kernel(lambda x: x + 1)
    caller = jit.kernel(lambda x: called(x))
    with pytest.raises(TypingError, match="is a kernel: what is called by others is `inline`"):
        caller(1)


OUTSIDE = """
import sys
from typing import NamedTuple
import numpy as np
from dmondrian._numba import jit

class Policy(NamedTuple):
    unit: float

@jit.inline
def part(policy, x, i):
    return x[i]

@jit.hook
def asked(policy, x, i):
    "Return an entry of x."

jit.implements(asked, Policy)(lambda policy, x, i: x[i])

@jit.kernel
def read(policy, x, i, by_hook):
    return asked(policy, x, i) if by_hook else part(policy, x, i)

for by_hook in (False, True):
    assert read(Policy(1.0), np.zeros(3), 2, by_hook) == 0.0
    try:
        read(Policy(1.0), np.zeros(3), 3, by_hook)
    except IndexError:
        continue
    sys.exit("read outside an array")
"""


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_bounds_checks_reach_the_parts_of_kernels(tmp_path: Path) -> None:
    script = tmp_path / "outside.py"
    script.write_text(OUTSIDE)
    root = str(Path(dmondrian.__file__).parents[1])
    env = {**os.environ, "DMONDRIAN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root}
    command = [sys.executable, str(script)]
    subprocess.run(command, env={**env, "NUMBA_BOUNDSCHECK": "1"}, check=True, timeout=120)


ANNOUNCED = """
import logging, sys
from dmondrian._numba import jit

logging.getLogger("dmondrian").setLevel(sys.argv[1])
once, twice = jit.kernel(lambda x: x), jit.kernel(lambda x: x + x)
assert (once(2), twice(2), twice(2.0)) == (2, 4, 4.0)
print(jit.compilations())
"""


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled")
def test_whoever_waits_for_a_compilation_is_reported_once(tmp_path: Path) -> None:
    script = tmp_path / "kernels.py"
    script.write_text(ANNOUNCED)
    root = str(Path(dmondrian.__file__).parents[1])

    def reported(cache: str, level: str) -> tuple[str, str]:
        env = {**os.environ, "DMONDRIAN_CACHE_DIR": str(tmp_path / cache), "PYTHONPATH": root}
        command = [sys.executable, "-W", "error", str(script), level]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    compiled, printed = reported("cache", "WARNING")
    assert compiled == "{'__main__.<lambda>': 3}"
    assert printed.startswith("compiling kernels for this machine, once")
    assert len(printed.splitlines()) == 1
    assert str(tmp_path / "cache") in printed
    assert reported("cache", "WARNING") == ("{}", "")
    assert reported("other", "ERROR") == (compiled, "")


def test_a_policy_without_an_answer_is_named() -> None:
    @jit.hook
    def asked(policy, x):
        """Ask what nobody implements."""

    class Nobody(NamedTuple):
        unit: float

    with pytest.raises(NotImplementedError, match="policy Nobody does not implement 'asked'"):
        asked(Nobody(1.0), 2)

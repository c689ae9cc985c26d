"""Several hosts on one machine: network namespaces on a switch, each with its own cable.

Some may be far away, on a switch of their own at the end of a long cable. Relies on `ip` (iproute2)
and the right to make namespaces. Promises that namespaces, cables and all processes started in them
are gone at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.command import PROJECT

NETWORK = "198.18.7"  # of RFC 2544's block for such experiments


class Far(NamedTuple):
    """Hosts that are far from the others, and the cable to them."""

    first: int  # this host and all after it
    seconds: float  # that a frame takes, one way
    loss: float  # share of frames that are lost


class Hosts:
    """The hosts of an experiment, numbered from 1.

    Parameters
    ----------
    n_hosts : int
    far : Far or None
        Those that are far away.

    Attributes
    ----------
    processes : list of Popen
        Leaders of process groups.
    """

    def __init__(self, n_hosts: int, far: Far | None = None) -> None:
        self._far = far
        self._name = f"dmondrian-{os.getpid()}"
        self._switch = f"{self._name}-switch"
        self._n_hosts = n_hosts
        self.processes: list[subprocess.Popen[str]] = []

    def build(self) -> None:
        _ip("netns", "add", self._switch)
        bridges = ("near", "far") if self._far else ("near",)
        for bridge in bridges:
            _ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
            _ip("-n", self._switch, "link", "set", bridge, "up")
        for number in range(1, self._n_hosts + 1):
            host, port = self._host(number), f"port{number}"
            bridge = "far" if self._far and number >= self._far.first else "near"
            _ip("netns", "add", host)
            _ip("-n", host, "link", "set", "lo", "up")
            ends = ("eth0", "netns", host, "type", "veth", "peer", "name", port)
            _ip("link", "add", *ends, "netns", self._switch)
            _ip("-n", self._switch, "link", "set", port, "master", bridge, "up")
            _ip("-n", host, "address", "add", f"{address(number)}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "eth0", "up")
        if self._far:
            cable = map(str, (*bridges, self._far.seconds, self._far.loss))
            link = self._run_in(self._switch, ["-m", "tests.cluster.far_link", *cable], {}, True)
            assert link.stdout is not None
            assert link.stdout.readline() == "ready\n"

    def start(
        self, number: int, *words: object, is_read: bool = False, **environment: str
    ) -> subprocess.Popen[str]:
        """Start Python with these arguments on a host; its output is read, or this process's."""
        return self._run_in(self._host(number), list(map(str, words)), environment, is_read)

    def _run_in(
        self, namespace: str, words: list[str], environment: dict[str, str], is_read: bool
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, *words],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_read else None,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def cut(self, number: int) -> None:
        """Pull the cable of a host: nothing is refused, packets only vanish."""
        _ip("-n", self._switch, "link", "set", f"port{number}", "down")

    def clear(self) -> None:
        for process in self.processes:
            # The group may hold workers although its leader is gone.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                process.wait(timeout=10)
        for name in [self._host(n) for n in range(1, self._n_hosts + 1)] + [self._switch]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def _host(self, number: int) -> str:
        return f"{self._name}-{number}"


def address(number: int) -> str:
    return f"{NETWORK}.{number}"


def why_not() -> str:
    """Say why there can be no namespaces here; an empty string where there can."""
    if shutil.which("ip") is None:
        return "needs the command ip (iproute2)"
    if not Path("/proc/self/ns/net").exists():
        return "needs network namespaces, which Linux has"
    hosts = Hosts(1)
    try:
        hosts.build()
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made: {error.stderr.strip()} (run as root)"
    finally:
        hosts.clear()
    return ""


@contextmanager
def connected_hosts(n_hosts: int, far: Far | None = None) -> Iterator[Hosts]:
    hosts = Hosts(n_hosts, far)
    try:
        hosts.build()
        yield hosts
    finally:
        hosts.clear()


def _ip(*words: Any) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

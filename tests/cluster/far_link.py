"""A long cable between two switches: frames come later, and some never.

    python -m tests.cluster.far_link SWITCH SWITCH SECONDS LOSS

The switches are bridges of the network namespace it runs in; each frame takes so many seconds in
either direction, and this share of them is lost. It forwards frames by itself, through two TAP
devices, as not every kernel has the queue that delays. Writes ``ready`` when both ends are
plugged in, and runs until it is ended.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # of linux/if_tun.h
_FRAME = 65_536  # bytes, more than a frame has


def end_of(switch: str, name: str) -> int:
    """Return a file of frames that a switch sends, and gets, through a port of this name."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "master", switch, "up"], check=True)
    return file


def forward(ends: tuple[int, int], seconds: float, loss: float) -> None:
    """Carry frames from each end to the other, for ever."""
    others = dict(zip(ends, reversed(ends), strict=True))
    draw = random.Random(0)
    on_the_way: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        wait = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        for end in select.select(ends, [], [], wait)[0]:
            frame = os.read(end, _FRAME)
            if draw.random() >= loss:
                number += 1
                heapq.heappush(on_the_way, (time.monotonic() + seconds, number, others[end], frame))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(on_the_way)
            os.write(end, frame)


def main() -> None:
    """Plug the cable in."""
    one, other, seconds, loss = sys.argv[1:]
    ends = end_of(one, "far0"), end_of(other, "far1")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    forward(ends, float(seconds), float(loss))


if __name__ == "__main__":
    main()

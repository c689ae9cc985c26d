"""Heartbeat of a detached job that scores, with its check for a request to stop.

Relies on the job's files in the run folder (:mod:`dmondrian.checkpoint.jobs`), and on scoring to
call a listener after each file. Promises that a stop requested before the block is entered takes
effect there, and a later one after the next file; that temporary failures of the store are ignored;
and that scores are finished once all files are written.
"""

from __future__ import annotations

import threading
from typing import Any

from dmondrian.checkpoint import jobs
from dmondrian.checkpoint.lease import BEAT_SECONDS
from dmondrian.distributed.cluster.progress import Progress
from dmondrian.errors import StoreError
from dmondrian.store import Store


class Heartbeat:
    """Context manager that writes the heartbeat of a scoring job.

    Parameters
    ----------
    store : Store
        Of the run's folder.
    job : str
    """

    def __init__(self, store: Store, job: str) -> None:
        self._store, self._job = store, job
        self._progress: dict[str, Any] = {}
        self._count = 0
        self._is_asked = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, name="dmondrian-scoring", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._beat()  # then check: either the request is seen here, or its sender sees the beat
        if self._is_asked:
            raise KeyboardInterrupt
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._thread.join()

    def on_progress(self, progress: Progress) -> None:
        """Store the progress of scoring, for the next heartbeat.

        Raises
        ------
        KeyboardInterrupt
            A stop was requested, and not all files are written.
        """
        self._progress = {"rows": progress.rows, "n_rows": progress.n_rows}
        if self._is_asked and progress.rows < progress.n_rows:
            raise KeyboardInterrupt

    def _live(self) -> None:
        while not self._ending.wait(BEAT_SECONDS):
            self._beat()

    def _beat(self) -> None:
        self._count += 1
        try:
            jobs.beat(self._store, self._job, {"count": self._count, **self._progress})
            self._is_asked = self._is_asked or jobs.is_asked_to_stop(self._store, self._job)
        except StoreError:
            return  # it may recover before the next one

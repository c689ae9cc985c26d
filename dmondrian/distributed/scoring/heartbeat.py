"""Signs of life of a detached job that scores, and its check for a request to stop.

Relies on the job's files in the run folder (:mod:`dmondrian.checkpoint.jobs`), and on the scoring
to call a listener whenever a file is written. Promises that a request that was made before a block
is entered is obeyed there, and a later one at the next file; that a store that fails for a moment
stops nothing; and that scores that are all written are finished rather than left.
"""

from __future__ import annotations

import threading
from typing import Any

from dmondrian.checkpoint import jobs
from dmondrian.checkpoint.lease import BEAT_SECONDS
from dmondrian.distributed.cluster.progress import Progress
from dmondrian.errors import StoreError
from dmondrian.store import Store


class ScoringBeat:
    """Says that a job scores, while it is entered.

    Parameters
    ----------
    store : Store
        Of the run's folder.
    job : str
    """

    def __init__(self, store: Store, job: str) -> None:
        self._store, self._job = store, job
        self._told: dict[str, Any] = {}
        self._count = 0
        self._is_asked = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, name="dmondrian-scoring", daemon=True)

    def __enter__(self) -> ScoringBeat:
        self._beat()  # and look after that: whoever asks sees the beat, or we see the request
        if self._is_asked:
            raise KeyboardInterrupt
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._thread.join()

    def listen(self, progress: Progress) -> None:
        """Hear how far the scoring is.

        Raises
        ------
        KeyboardInterrupt
            Somebody asked the job to stop, and not all files are written.
        """
        self._told = {"rows": progress.rows, "n_rows": progress.n_rows}
        if self._is_asked and progress.rows < progress.n_rows:
            raise KeyboardInterrupt

    def _live(self) -> None:
        while not self._ending.wait(BEAT_SECONDS):
            self._beat()

    def _beat(self) -> None:
        self._count += 1
        try:
            jobs.beat(self._store, self._job, {"count": self._count, **self._told})
            self._is_asked = self._is_asked or jobs.is_asked_to_stop(self._store, self._job)
        except StoreError:
            return  # it may be back in a moment

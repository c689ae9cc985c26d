"""What to do about a file of a run's own that has a row which cannot be learned.

A run writes rows that come as batches, or get their lags, to files in its folder and learns these.
Promises one advice for all of them: whether such a file may be made again depends on the stream of
the checkpoints alone.
"""

from __future__ import annotations

UNLEARNED = (
    "mend {source}, delete {name} in {folder} and all files there with higher numbers, of which "
    "nothing is learned yet, and run the same again"
)
"""Advice where no checkpoint is of a stream with the file."""

LEARNED = (
    "a checkpoint is of a stream that has these rows, so other rows cannot take their place: mend "
    "{source} and train a new run, in another folder; or train one with the option that is named "
    "above, if one is. The checkpoints that are there can still be used to score"
)
"""Advice where one is."""


def advice(source: str, folder: str, name: str, is_of_checkpoint: bool) -> str:
    """Return what to do about a file, in words.

    Parameters
    ----------
    source : str
        What the rows come from, which is to be mended.
    folder, name : str
        Of the first file that is to be made again.
    is_of_checkpoint : bool
        Whether a checkpoint is of a stream that has the file.
    """
    text = LEARNED if is_of_checkpoint else UNLEARNED
    return text.format(source=source, folder=folder, name=name)

"""Checkpoints: a forest as bytes, a training run as a folder, a model as a run with one commit.

Relies on dmondrian.store for objects and on pyarrow for the bytes. Promises: equal states give
equal blobs and equal manifests; what is read back is checked before it is used; no pickle.
"""

from dmondrian.checkpoint.codec import decode_forest, encode_forest
from dmondrian.checkpoint.lease import Lease
from dmondrian.checkpoint.manifest import Manifest
from dmondrian.checkpoint.model import known_trees, load_model, look_at_model, save_model
from dmondrian.checkpoint.run import Run
from dmondrian.checkpoint.stored_trees import Blob, load_trees, peek_blobs

__all__ = [
    "Blob",
    "Lease",
    "Manifest",
    "Run",
    "decode_forest",
    "encode_forest",
    "known_trees",
    "load_model",
    "load_trees",
    "look_at_model",
    "peek_blobs",
    "save_model",
]

"""Names of keys and algorithms in other libraries, for "did you mean" in errors of job files.

Relies on nothing. Promises that no name here is one of ours.
"""

from __future__ import annotations

_SEEDS = ("random_seed", "rng", "randomstate", "seed_value")
_TREES = ("n_trees", "num_trees", "ntrees", "ntree", "n_tree", "trees", "iterations")
# By table: a key, and its other names in small letters.
KEYS: dict[str, dict[str, tuple[str, ...]]] = {
    "data": {
        "path": ("file", "files", "source", "data", "train", "input", "folder", "url"),
        "root": ("base", "base_path", "prefix", "data_dir", "base_dir"),
        "target": ("label", "labels", "y", "target_column", "label_column", "class", "outcome"),
        "exclude": ("drop", "ignore", "drop_columns", "skip", "exclude_columns"),
        "categorical": ("categories", "categorical_features", "cat_features"),
        "text": ("texts", "text_columns", "text_column", "words"),
        "cyclic": ("cyclical", "periodic", "circular"),
        "weight": ("weights", "sample_weight", "sample_weights", "weight_column"),
        "seed": ("random_state", *_SEEDS),
    },
    "lags": {
        "columns": ("column", "features", "variables"),
        "lags": ("lag", "shifts", "shift", "periods"),
        "key": ("group", "groupby", "by", "id", "group_by"),
        "differences": ("difference", "diff", "diffs"),
        "n_rows": ("rows", "window", "max_rows"),
    },
    "forest": {
        "algorithm": ("model", "estimator", "type", "kind", "name"),
        "n_estimators": _TREES,
        "random_state": ("seed", *_SEEDS),
        "max_nodes": ("max_depth", "depth", "max_leaf_nodes", "max_leaves", "num_leaves"),
        "loss": ("objective",),
        "class_weight": ("class_weights", "scale_pos_weight"),
        "quantile": ("quantiles", "alphas"),
        "lifetime": ("budget",),
        "monotonic_cst": (
            "monotone_constraints",
            "monotonic_constraints",
            "monotone",
            "constraints",
        ),
    },
    "run": {
        "path": ("out", "output", "folder", "dir", "directory", "output_dir", "url"),
        "checkpoint_every": ("checkpoint", "checkpoints", "checkpoint_interval", "save_every"),
        "n_shards": ("shards", "num_shards"),
        "row_parts": ("n_row_parts", "row_ranges", "parts"),
    },
    "cluster": {
        "scheduler": ("address", "client", "url", "scheduler_file", "scheduler_address"),
        "workers": ("n_workers", "num_workers", "processes", "n_jobs"),
        "threads": ("n_threads", "nthreads", "threads_per_worker", "num_threads"),
    },
    "score": {
        "path": ("data", "file", "files", "test", "input"),
        "out": ("output", "folder", "dir", "predictions"),
        "keep": ("columns", "keep_columns", "id"),
    },
}
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "amf-classifier": ("amf", "classification", "classifier"),
    "amf-regressor": ("regression", "regressor"),
    "mondrian-forest-classifier": ("mondrian-forest", "mondrian"),
    "generalized-mondrian-forest-regressor": ("quantile", "quantile-forest"),
    "mondrian-density": ("density",),
    "mondrian-kernel-regressor": ("kernel", "mondrian-kernel"),
    "online-forest-classifier": ("random-forest", "online-random-forest-classifier"),
    "online-forest-regressor": ("online-random-forest-regressor",),
}


def key_meant(table: str, name: str) -> str | None:
    """Return the key that other libraries call by a name, or None."""
    return _meant(KEYS.get(table, {}), name.lower())


def algorithm_meant(name: str) -> str | None:
    """Return the algorithm that other libraries call by a name (lower case, hyphens), or None."""
    return _meant(ALGORITHMS, name)


def _meant(names: dict[str, tuple[str, ...]], name: str) -> str | None:
    return next(
        (canonical for canonical, other_names in names.items() if name in other_names), None
    )

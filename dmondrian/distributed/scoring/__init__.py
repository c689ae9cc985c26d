"""A stored model asked about many rows: scores, evaluations, Dask collections."""

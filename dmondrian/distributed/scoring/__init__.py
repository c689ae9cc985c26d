"""Predictions of stored models on Dask: scores as Parquet, evaluation, Dask collections."""

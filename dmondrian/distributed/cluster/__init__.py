"""The Dask cluster: its client, workers and results, signals, events and progress."""

"""The one package that imports Numba and llvmlite (``tests/test_layers.py``)."""

"""Measurements of dmondrian: quality, defaults and speed, each beside its peers.

Each module is a script: ``python -m benchmarks.<name> --help`` from the root of a checkout.
`history` is asv's, which compares one commit with another.
"""

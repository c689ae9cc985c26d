"""Exceptions of dmondrian.

Every message has what was expected, what came and what to do. The hierarchy::

    DMondrianError
    |-- ParameterError (ValueError)   a parameter is outside its range
    |-- DataError (ValueError)        rows, files or columns that cannot be used
    |   |-- SchemaError               columns missing, renamed or of another type
    |   `-- PlanError                 the data changed under a run
    |-- MissingPackageError (ImportError)  an optional package is not installed
    |-- JobError (ValueError)         a job file or an override is wrong
    |-- CheckpointError               a run folder cannot be used
    |   |-- CorruptError              bytes that were changed since they were written
    |   `-- FencedError               another writer owns this run
    |-- StoreError                    an object store refused or failed
    |   |-- NotFoundError             no object of that name
    |   `-- OutageError               a remote store does not answer at the moment
    `-- ClusterError                  workers lost, or a wait ran out
"""

from __future__ import annotations


class DMondrianError(Exception):
    """Base of all errors raised on purpose by dmondrian."""


class ParameterError(DMondrianError, ValueError):
    """A parameter has a type or value that cannot work."""


class DataError(DMondrianError, ValueError):
    """Rows, files or columns that cannot be learned or scored."""


class SchemaError(DataError):
    """Columns are missing, renamed or of another type than the model's."""


class PlanError(DataError):
    """A file of a frozen plan changed, vanished or cannot be read."""


class MissingPackageError(DMondrianError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class JobError(DMondrianError, ValueError):
    """A job file or an override is wrong."""


class CheckpointError(DMondrianError):
    """A run folder cannot be used as asked."""


class CorruptError(CheckpointError):
    """Stored bytes are truncated, altered or inconsistent."""


class FencedError(CheckpointError):
    """Another writer committed to this run."""


class StoreError(DMondrianError):
    """An object store refused or failed."""


class NotFoundError(StoreError, KeyError):
    """No object of that name in the store."""

    __str__ = Exception.__str__


class OutageError(StoreError):
    """A remote store does not answer, or cannot serve at the moment: waiting may mend it."""


class ClusterError(DMondrianError):
    """Workers were lost beyond recovery, or a bounded wait ran out."""

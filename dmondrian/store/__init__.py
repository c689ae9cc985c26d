"""Object stores with one small interface: local folders, S3 and similar services, memory.

Promises: no object is ever visible half-written; of concurrent `put_new` calls one succeeds;
credentials come from the environment and appear in no repr, error or pickle.
"""

from dmondrian.store.address import Address, parse_address
from dmondrian.store.failures import ExistsError
from dmondrian.store.store import PROBE, Store, open_store
from dmondrian.store.writable import check_writable

__all__ = [
    "PROBE",
    "Address",
    "ExistsError",
    "Store",
    "check_writable",
    "open_store",
    "parse_address",
]

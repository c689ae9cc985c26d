"""Object stores behind one small interface: a local folder, S3 and its relatives, memory.

Promises: nothing is ever visible half-written under its own name; `put_new` lets one writer win;
credentials come from the environment and appear in no repr, error or pickle.
"""

from dmondrian.store.address import Address, parse_address
from dmondrian.store.failures import ExistsError
from dmondrian.store.store import Store, open_store
from dmondrian.store.writable import check_writable

__all__ = ["Address", "ExistsError", "Store", "check_writable", "open_store", "parse_address"]

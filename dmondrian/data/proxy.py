"""Web proxies, as the environment configures them.

obstore, which reads and writes runs and reads web links, follows these variables; the S3 client of
pyarrow, which reads data, does not, and gets its proxy from here.
"""

from __future__ import annotations

import ipaddress
import os


def proxy_for(scheme: str, host: str) -> str | None:
    """Return the URL of the proxy for requests to a host, or None.

    Parameters
    ----------
    scheme : {"http", "https"}
        Of the requests: HTTP_PROXY or HTTPS_PROXY is followed, else ALL_PROXY; AWS_PROXY_URL comes
        first. Lower-case names are accepted.
    host : str
        Name or address; hosts in NO_PROXY are reached without a proxy.
    """
    proxy = _value("AWS_PROXY_URL") or _value(f"{scheme.upper()}_PROXY") or _value("ALL_PROXY")
    if not proxy or any(_is_named(host, entry) for entry in _value("NO_PROXY").split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _value(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.lower(), "")


def _is_named(host: str, entry: str) -> bool:
    """Whether an entry of NO_PROXY names a host: as it is, by its domain or by its network."""
    entry = entry.strip()
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        domain = entry.lstrip(".").lower()
        return entry == "*" or (domain != "" and f".{host.lower()}".endswith(f".{domain}"))

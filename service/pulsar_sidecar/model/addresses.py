"""Addresses to which a credential may be sent.

No other machine can overhear traffic to a loopback address, and clients follow redirects to registered sidecars
only.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from pulsar_sidecar.model.errors import InvalidInputError


@lru_cache(maxsize=1_000)
def is_loopback(host: str) -> bool:
    """Return True if a host name or address, without brackets, is a loopback one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def origin(url: str) -> str:
    """Return scheme, host in lower case, and port of a URL, without its user."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def sidecars_by_cluster(pairs: Iterable[str]) -> dict[str, str]:
    """Return the addresses of other clusters' sidecars by cluster, from texts like ``west=https://sidecar.west:8750``.

    Raises:
        InvalidInputError: one of them is not NAME=URL.
    """
    split = [pair.strip().partition("=") for pair in pairs if pair.strip()]
    if not all(name and urlsplit(url).scheme in ("http", "https") for name, _, url in split):
        raise InvalidInputError("write the sidecars of other clusters as NAME=URL,NAME=URL")
    return {name: url.rstrip("/") for name, _, url in split}


def names_sidecar_at(status: object, url: str) -> bool:
    """Return True if the JSON of a sidecar's status lists a sidecar at the URL's origin."""
    instances = status.get("instances", []) if isinstance(status, dict) else []
    return origin(url) in {origin(str(each.get("advertisedUrl"))) for each in instances}

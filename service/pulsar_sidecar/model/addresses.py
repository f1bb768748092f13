"""Which addresses are this machine's own: no other machine can overhear what goes there."""

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=1_000)
def is_loopback(host: str) -> bool:
    """Whether a host name or address, without brackets, is a loopback one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

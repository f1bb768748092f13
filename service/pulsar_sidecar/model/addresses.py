"""Which addresses are this machine's own: what goes there can be overheard by nobody else."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without brackets, is a loopback one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

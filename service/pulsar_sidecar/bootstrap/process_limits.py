"""How many connections callers may have, so that files are left for the sidecar's own: ZooKeeper, brokers, bookies."""

import sys

_MOST_FILES = 65_536
"""More would only make the tables larger that some libraries keep for each."""
_FEWEST_CONNECTIONS = 8


def connections_for_callers(wanted: int) -> int:
    """Let this process open as many files as it may, and give callers at most half of them."""
    if sys.platform == "win32":
        return wanted
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    files = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return min(wanted, max(_FEWEST_CONNECTIONS, files // 2))

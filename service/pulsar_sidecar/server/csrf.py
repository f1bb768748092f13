"""Cross-site requests, to which a browser automatically adds certificate, cookies and address."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers

_OURS = frozenset({"same-origin", "none"})
"""``none``: the user typed the address or opened a bookmark."""
_PORTS = {"http": 80, "https": 443}


def is_cross_site(headers: Headers, scheme: str) -> bool:
    """Return True if the browser sends this for a page of another origin, by headers that programs do not send.

    ``scheme`` is the scheme of this connection: behind a proxy that terminates TLS, browsers may still use ``https``.
    """
    site, origin, host = headers.getlist("sec-fetch-site"), headers.getlist("origin"), headers.get("host", "")
    return not _OURS.issuperset(site) or not all(_is_here(each, host, scheme) for each in origin)


def _is_here(origin: str, host: str, scheme: str) -> bool:
    try:
        theirs, ours = urlsplit(origin), urlsplit(f"//{host}")
        default = _PORTS.get(theirs.scheme)
        same = (theirs.hostname, theirs.port or default) == (ours.hostname, ours.port or default)
    except ValueError:
        return False
    return same and theirs.hostname is not None and theirs.scheme in {scheme, "https"}

"""Pages of other sites, which a browser lets ask with whatever it adds by itself: certificate, cookie, address."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers

_OURS = frozenset({"same-origin", "none"})
"""``none``: the user asked, by an address that was typed or a bookmark."""
_PORTS = {"http": 80, "https": 443}


def is_of_another_site(headers: Headers, scheme: str) -> bool:
    """Whether a browser asks for a page of another origin, by headers that programs do not send.

    ``scheme`` is by which the request came here: behind a proxy that ends TLS, browsers may still use ``https``.
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

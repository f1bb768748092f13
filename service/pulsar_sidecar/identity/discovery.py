"""OpenID Connect discovery: an issuer's own document, which names its other addresses."""

from pathlib import Path
from typing import Final

import requests

from pulsar_sidecar.model.errors import TemporaryError

TIMEOUT_SECONDS: Final = 5.0
_PATH = "/.well-known/openid-configuration"


def discovered_url(issuer: str, name: str, trusted: Path | None) -> str:
    """Return the URL that the issuer's document has under this name, such as ``jwks_uri``.

    ``trusted``: PEM file with the CA certificates that verify the issuer; None: the system's.

    Raises:
        TemporaryError: the document cannot be read, is another issuer's, or names no such URL.
    """
    try:
        answer = requests.get(
            issuer.rstrip("/") + _PATH, timeout=TIMEOUT_SECONDS, verify=verified_by(trusted), allow_redirects=False
        )
        document = answer.json() if answer.status_code == requests.codes.ok else None
    except (requests.RequestException, OSError) as error:
        raise TemporaryError(f"{issuer}{_PATH} cannot be read ({type(error).__name__})") from error
    if not isinstance(document, dict):
        raise TemporaryError(f"{issuer}{_PATH} was answered with status {answer.status_code} and without a document")
    if document.get("issuer") != issuer:
        raise TemporaryError(f"{issuer}{_PATH} names another issuer; write its URL exactly as the document has it")
    url = document.get(name)
    if not isinstance(url, str) or (issuer.startswith("https:") and not url.startswith("https:")):
        raise TemporaryError(f"{issuer}{_PATH} names no {name} that begins with https:")
    return url


def verified_by(trusted: Path | None) -> str | bool:
    """Return the ``verify`` argument for ``requests``."""
    return True if trusted is None else str(trusted)

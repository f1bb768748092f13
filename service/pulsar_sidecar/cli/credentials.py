"""The token the command line sends, from the places pulsar-admin reads.

Invariant: the token appears in no message.
"""

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pulsar_sidecar.model.errors import InvalidInputError

_TOKEN_PLUGINS = frozenset({"token", "org.apache.pulsar.client.impl.auth.AuthenticationToken"})


def token_of(auth_plugin: str | None, auth_params: str | None) -> str | None:
    """The token that ``authPlugin`` and ``authParams`` stand for (``AuthenticationToken.configure``).

    Raises:
        InvalidInputError: the plugin is not the token's, or the token cannot be read.
    """
    if auth_plugin and auth_plugin not in _TOKEN_PLUGINS:
        raise InvalidInputError(
            f"the sidecar accepts tokens only, and {auth_plugin} is not the token plugin; use --auth-plugin token"
        )
    if not auth_params:
        return None
    token = _token(auth_params).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInputError("authParams contain no token; write token:... or file:///path/to/token")
    return token


def _token(auth_params: str) -> str:
    if auth_params.startswith("token:"):
        return auth_params.removeprefix("token:")
    if auth_params.startswith("file:"):
        return _token_in_file(Path(unquote(urlsplit(auth_params).path)))
    if auth_params.lstrip().startswith("{"):
        return _token_in_json(auth_params)
    return auth_params


def _token_in_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"the token's file {path} cannot be read ({type(error).__name__})") from error


def _token_in_json(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        raise InvalidInputError(
            'authParams start like JSON and cannot be parsed; write {"token": "..."}, token:... or file:///path/to/token'
        ) from None
    return str(document.get("token", "")) if isinstance(document, dict) else ""

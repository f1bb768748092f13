"""Sources of settings: flags, the environment, a properties file, Pulsar's ``client.conf``.

This module does not import the settings' types, so that the command line can use it and still start quickly. Invariant:
a source's values are keyed by the settings' Python names; no value is a default or empty.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pulsar_sidecar.model.errors import InvalidInputError

ENVIRONMENT_PREFIX = "PULSAR_SIDECAR_"
ENVIRONMENT_OF_THE_COMMAND_LINE = frozenset({"ADMIN_URL", "CACHE", "CONFIG", "REQUEST_TIMEOUT"})
"""Names after the prefix that are not settings of the service."""

CLIENT_CONF_SETTINGS = frozenset(
    {
        "web_service_url",
        "broker_service_url",
        "auth_plugin",
        "auth_params",
        "tls_trust_certs_file_path",
        "tls_allow_insecure_connection",
        "tls_enable_hostname_verification",
        "tls_certificate_file_path",
        "tls_key_file_path",
    }
)
"""Relevant keys of Pulsar's ``client.conf``; its other keys belong to other tools."""

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY_END = re.compile(r"(?<!\\)(?:\\\\)*([=:\s])")


def setting_key(field: str) -> str:
    """Return a setting's key in a properties file: camelCase, as in ``broker.conf``."""
    first, *others = field.split("_")
    return {"openid": "openID"}.get(first, first) + "".join(
        "MB" if word == "mb" else word.capitalize() for word in others
    )


def environment_variable(field: str) -> str:
    return ENVIRONMENT_PREFIX + field.upper()


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def properties(path: Path) -> dict[str, str]:
    """Read a Java properties file (``java.util.Properties``) by its own keys; the last of equal keys wins."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read the configuration file {path}: {error}") from error
    return dict(_key_and_value(line) for line in _logical_lines(text))


def client_conf_path(environment: Mapping[str, str]) -> Path | None:
    """Return the ``client.conf`` that pulsar-admin would read: ``PULSAR_CLIENT_CONF``, or the distribution's."""
    if named := environment.get("PULSAR_CLIENT_CONF"):
        return Path(named)
    path = Path(environment.get("PULSAR_HOME", ""), "conf", "client.conf")
    return path if environment.get("PULSAR_HOME") and path.exists() else None


def client_conf_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in ``client.conf``; empty if there is none."""
    path = client_conf_path(environment)
    written = {} if path is None else properties(path)
    return {field: text for field in CLIENT_CONF_SETTINGS if (text := written.get(setting_key(field)))}


def environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return every variable with the prefix, known or not, by the name after it."""
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): text
        for name, text in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and text
    }


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments, continued lines joined."""
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _key_and_value(line: str) -> tuple[str, str]:
    end = _KEY_END.search(line)
    if end is None:
        return _unescaped(line), ""
    rest = line[end.start(1) :].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescaped(line[: end.start(1)]), _unescaped(rest)


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROL.get(escaped, escaped)

    return _ESCAPE.sub(plain, text).rstrip("\r")

"""Where settings are written down: flags, the environment, a properties file, Pulsar's ``client.conf``.

Reading only, without the settings' types, so that the command line can use it and stay quick to start. Invariant: a
layer holds what is written in its source, by the setting's Python name, never a default and never an empty text.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
"""What Pulsar's ``client.conf`` says that matters here; its other keys belong to other tools."""

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY_END = re.compile(r"(?<!\\)(?:\\\\)*([=:\s])")


@dataclass(frozen=True, slots=True)
class Layer:
    """One source: ``name`` as a person would say it, and the texts it holds by the setting's Python name."""

    name: str
    values: Mapping[str, str]


def setting_key(field: str) -> str:
    """A setting's key in a properties file: camelCase, as in ``broker.conf``."""
    first, *others = field.split("_")
    return first + "".join("MB" if word == "mb" else word.capitalize() for word in others)


def environment_variable(field: str) -> str:
    """A setting's environment variable."""
    return ENVIRONMENT_PREFIX + field.upper()


def flag(field: str) -> str:
    """A setting's flag on the command line."""
    return "--" + field.replace("_", "-")


def properties(path: Path) -> dict[str, str]:
    """Read a Java properties file (``java.util.Properties``) by its own keys; the last of equal keys wins.

    Raises:
        InvalidInputError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read the configuration file {path}: {error}") from error
    return dict(_key_and_value(line) for line in _logical_lines(text))


def client_conf_path(environment: Mapping[str, str]) -> Path | None:
    """The ``client.conf`` that pulsar-admin would read: the one named, or the distribution's if it exists."""
    if named := environment.get("PULSAR_CLIENT_CONF"):
        return Path(named)
    if home := environment.get("PULSAR_HOME"):
        path = Path(home) / "conf" / "client.conf"
        return path if path.exists() else None
    return None


def client_conf_layer(environment: Mapping[str, str]) -> Layer:
    """What ``client.conf`` says; empty when there is none."""
    path = client_conf_path(environment)
    if path is None:
        return Layer("client.conf", {})
    keys = {setting_key(field): field for field in CLIENT_CONF_SETTINGS}
    written = properties(path)
    return Layer(str(path), {keys[key]: text for key, text in written.items() if key in keys and text})


def environment_layer(environment: Mapping[str, str]) -> Layer:
    """Every variable with the prefix, known or not, by the name after it."""
    values = {
        name.removeprefix(ENVIRONMENT_PREFIX): text
        for name, text in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and text
    }
    return Layer("environment", {name.lower(): text for name, text in values.items()})


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, continued lines joined."""
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

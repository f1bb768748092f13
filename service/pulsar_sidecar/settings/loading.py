"""Reads the settings from their sources.

A setting is written as a flag, as ``PULSAR_SIDECAR_<NAME>``, in a properties file under a ``broker.conf``-like key, or
(for the connection) in Pulsar's ``client.conf``; the first of these that has it wins. Invariants: loading ends with
settings that fit together, or with one error that names the setting, the source and what to write; a secret is never
part of that error.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.settings.fields import Settings
from pulsar_sidecar.settings.sources import (
    ENVIRONMENT_OF_THE_COMMAND_LINE,
    Layer,
    client_conf_layer,
    environment_layer,
    environment_variable,
    flag,
    properties,
    setting_key,
)


def load_settings(
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    config: Path | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Settings:
    """Read the settings from all sources.

    Args:
        flags: texts by the setting's Python name; None and an empty text are not a value.
        environment: usually ``os.environ``; ``PULSAR_SIDECAR_CONFIG`` may name the file instead of ``config``.
        config: a properties file.
        warn: receives a text about each variable that is not a setting.

    Raises:
        InvalidInputError: a setting is unknown, wrong or missing; the text says which, where, and what to write.
    """
    config = config or (Path(named) if (named := environment.get("PULSAR_SIDECAR_CONFIG")) else None)
    layers = (
        Layer("command line", {name: text for name, text in flags.items() if text}),
        _known_environment(environment_layer(environment), warn),
        _file_layer(config),
        client_conf_layer(environment),
    )
    written = {name: text for layer in reversed(layers) for name, text in layer.values.items()}
    try:
        return Settings.model_validate(written)
    except ValidationError as error:
        raise InvalidInputError(_explained(error, layers)) from None


def _known_environment(layer: Layer, warn: Callable[[str], None]) -> Layer:
    values = {}
    for name, text in layer.values.items():
        if name in Settings.model_fields:
            values[name] = text
        elif name.upper() not in ENVIRONMENT_OF_THE_COMMAND_LINE:
            guess = difflib.get_close_matches(name, Settings.model_fields, n=1)
            meant = f"; did you mean {environment_variable(guess[0])}?" if guess else ""
            warn(f"the environment variable {environment_variable(name)} is not a setting and has no effect{meant}")
    return Layer(layer.name, values)


def _file_layer(path: Path | None) -> Layer:
    if path is None:
        return Layer("configuration file", {})
    fields = {setting_key(field): field for field in Settings.model_fields}
    written = properties(path)
    for key in written:
        if key not in fields:
            guess = difflib.get_close_matches(key, fields, n=1)
            meant = f"; did you mean {guess[0]}?" if guess else ""
            raise InvalidInputError(f"{path}: {key!r} is not a setting{meant}")
    return Layer(str(path), {fields[key]: text for key, text in written.items() if text})


def _explained(error: ValidationError, layers: Sequence[Layer]) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        text = problem["msg"].removeprefix("Value error, ")
        field = str(problem["loc"][0]) if problem["loc"] else None
        lines.append(text if field is None else _explained_field(field, problem["type"], text, layers))
    return "\n".join(lines)


def _explained_field(field: str, kind: str, text: str, layers: Sequence[Layer]) -> str:
    example = _example(field)
    written = f"{flag(field)} {example}, {environment_variable(field)}={example}, or {setting_key(field)}={example}"
    if kind == "missing":
        return f"{setting_key(field)} is missing: write for example {written} in the configuration file"
    source = next((layer.name for layer in layers if field in layer.values), "defaults")
    return f"{setting_key(field)} ({source}): {text}; write for example {setting_key(field)}={example}"


def _example(field: str) -> str:
    definition = Settings.model_fields[field]
    if definition.examples:
        return str(definition.examples[0])
    default = definition.get_default()
    return str(default).lower() if default or default is False else "..."

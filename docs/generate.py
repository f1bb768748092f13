"""Writes the reference pages from the program itself, so that they cannot differ from it.

Run it without arguments to write them, with ``--check`` to fail when one is out of date. The output depends on
nothing but the source: no date, no version of a library, no machine.
"""

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import chart_schema
import typer
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pulsar_sidecar.bootstrap.commands import command_line
from pulsar_sidecar.bootstrap.features import FEATURES
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, LazyCommand
from pulsar_sidecar.features.delayed_messages.http.bulk_lines import MEDIA_TYPE
from pulsar_sidecar.server.app import create_app
from pulsar_sidecar.server.guard import guarded_routes
from pulsar_sidecar.server.rights import Right
from pulsar_sidecar.settings.fields import GROUPS, default_text, title
from pulsar_sidecar.settings.sources import CLIENT_CONF_SETTINGS, environment_variable, flag, setting_key

REFERENCE = Path(__file__).parent / "reference"
_PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_NOTE = "<!-- Written by docs/generate.py; `make generate` writes it again. -->\n\n"
_HELP_WIDTH = 100


def pages() -> dict[Path, str]:
    """Every page by its path, and the schema of the chart's values."""
    app = _app()
    openapi = app.openapi()
    texts = {
        "openapi.json": json.dumps(openapi, indent=2, ensure_ascii=False) + "\n",
        "rights.md": _NOTE + "\n".join(_rights(app)),
        "configuration.md": _NOTE + "\n".join(_configuration()),
    }
    schema = {chart_schema.CHART / "values.schema.json": chart_schema.schema_text()}
    return {REFERENCE / name: text for name, text in texts.items()} | schema


def write_site_pages() -> None:
    """Write the references of which the tree has another form: `openapi.json` and `rights.md`, and every ``--help``."""
    _write(REFERENCE / "rest.md", _NOTE + "\n".join(_rest(_app().openapi())))
    _write(REFERENCE / "cli.md", _NOTE + "\n".join(_command_line()))


def main(arguments: list[str]) -> int:
    """Write or check; 1 when a page is out of date."""
    stale = []
    for path, text in pages().items():
        if _is_current(path, text):
            continue
        stale.append(path.name)
        if arguments != ["--check"]:
            _write(path, text)
    if stale and arguments == ["--check"]:
        output.info(f"out of date: {', '.join(stale)}; run: make generate")
        return 1
    return 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def _write(path: Path, text: str) -> None:
    if not _is_current(path, text):  # an untouched file is not read again by Sphinx
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


# --- REST ----------------------------------------------------------------------------------------------------------


def _app() -> FastAPI:
    version = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    return create_app(
        [routes for entry in FEATURES for routes in entry.routes()],  # describing routes calls no service
        lambda: None,
        CollectorRegistry(),
        Event(),
        version=version,
    )


def _rest(openapi: Mapping[str, Any]) -> Iterator[str]:
    yield f"# REST reference\n\n{openapi['info']['description']}\n"
    yield (
        "All schemas with every limit: [openapi.json](openapi.json), which a running sidecar has at `/openapi.json`. "
        "`openapi-python-client generate --path openapi.json` makes a Python client of it.\n"
    )
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            yield f"## {method.upper()} {path}\n\n{operation['description']}\n"
            yield f"Takes {operation['x-takes']}.\n"
            yield from _parameters(operation)
            yield from _body(openapi, operation)
            yield from _answers(openapi, operation)


def _rights(app: FastAPI) -> Iterator[str]:
    yield "# Routes and their rights\n\nSuperusers may call every route. [Rights](../rights.md) explains the rest.\n"
    yield (
        "[openapi.json](openapi.json), which a running sidecar has at `/openapi.json`, describes parameters, fields "
        "and answers; the site that `make docs` builds has them as a page.\n"
    )
    yield "Every other path below `/admin/` and `/lookup/` takes what the broker asks for that it is passed to.\n"
    routes = list(guarded_routes(app))
    for right in Right:
        found = [(path, method) for method, path, taken in routes if taken is right]
        if found:
            yield f"## {right.value.words[0].upper()}{right.value.words[1:]}\n\n| | |\n|---|---|"
            yield from (f"| {method} | `{path}` |" for path, method in sorted(found))
            yield ""


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    asked = [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
    if asked:
        yield "| parameter | type | default | |\n|---|---|---|---|"
        for parameter in asked:
            schema = parameter["schema"]
            default = json.dumps(schema.get("default"))
            text = _one_line(parameter.get("description", ""))
            yield f"| `{parameter['name']}` | {schema.get('type', '')} | `{default}` | {text} |"
        yield ""


def _body(openapi: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[str]:
    if body := operation.get("requestBody"):
        optional = "" if body.get("required") else ", optional"
        ((media_type, content),) = body["content"].items()
        lines = " lines, each" if media_type == MEDIA_TYPE else ""
        yield f"Request (JSON{lines}{optional}):\n"
        yield from _fields(openapi, content["schema"], required_column=True)


def _answers(openapi: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in operation["responses"].items():
        if "$ref" in answer or status == "default":
            continue  # an error; the description at the top has them all
        yield f"Answers {status}: {_one_line(answer['description'])}\n"
        schema = answer.get("content", {}).get("application/json", {}).get("schema")
        if schema:
            yield from _fields(openapi, schema, required_column=False)


def _fields(openapi: Mapping[str, Any], schema: Mapping[str, Any], *, required_column: bool) -> Iterator[str]:
    resolved = _resolved(openapi, schema)
    if resolved.get("type") == "array":
        yield "An array of:\n"
        resolved = _resolved(openapi, resolved["items"])
    rows = list(_rows(openapi, resolved, ""))
    if not rows:
        return
    yield "| field | type | required | |\n|---|---|---|---|" if required_column else "| field | type | |\n|---|---|---|"
    for name, kind, required, text in rows:
        middle = f"{'yes' if required else ''} | " if required_column else ""
        yield f"| `{name}` | {kind} | {middle}{text} |"
    yield ""


def _rows(openapi: Mapping[str, Any], schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, bool, str]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        kinds = field.get("anyOf", [field])
        kind = " or ".join(dict.fromkeys(_kind(openapi, option) for option in kinds))
        yield f"{prefix}{name}", kind, name in required, _one_line(field.get("description", ""))
        for option in kinds:
            target = _resolved(openapi, option)
            items = _resolved(openapi, target.get("items", {})) if target.get("type") == "array" else target
            suffix = "[]." if target.get("type") == "array" else "."
            yield from _rows(openapi, items, f"{prefix}{name}{suffix}")


def _kind(openapi: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    resolved = _resolved(openapi, schema)
    if "enum" in resolved:
        return ", ".join(f"`{value}`" for value in resolved["enum"])
    return str(resolved.get("type", "any"))


def _resolved(openapi: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "anyOf" in schema:
        named = [option for option in schema["anyOf"] if "$ref" in option]
        schema = named[0] if named else schema
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


# --- configuration -------------------------------------------------------------------------------------------------


def _configuration() -> Iterator[str]:
    yield (
        "# Configuration\n\nA setting may be written as a flag of `pulsar-sidecar serve`, as an environment variable, "
        "in the properties file that `--config` or `PULSAR_SIDECAR_CONFIG` names, or, if it is marked with ¹, in the "
        "`client.conf` that pulsar-admin reads (`PULSAR_CLIENT_CONF`, or `$PULSAR_HOME/conf/client.conf`). The first "
        "of these that has it wins; an empty value counts as unset. An unknown key in the file is an error, an "
        "unknown `PULSAR_SIDECAR_*` variable a warning.\n"
    )
    for group in GROUPS:
        yield f"## {_one_line(title(group))}\n"
        yield "| setting, flag, variable | default | |\n|---|---|---|"
        for name, field in group.model_fields.items():
            mark = " ¹" if name in CLIENT_CONF_SETTINGS else ""
            default = "required" if field.is_required() else f"`{written}`" if (written := default_text(field)) else ""
            spellings = f"`{setting_key(name)}`{mark}<br>`{flag(name)}`<br>`{environment_variable(name)}`"
            text = _one_line(field.description or "")
            yield f"| {spellings} | {default} | {text} |"
        yield ""


# --- command line --------------------------------------------------------------------------------------------------


def _command_line() -> Iterator[str]:
    yield "# Command line\n\n`python -m pulsar_sidecar` is the same as `pulsar-sidecar`.\n"
    yield (
        "Every command has `--help`; those that print an answer have `--output-format json|table`, which overrides "
        f"the global option.\n\n{EXIT_CODES} Commands with other exit codes say so.\n"
    )
    yield from _command(command_line(), "pulsar-sidecar", None, frozenset({EXIT_CODES}))


def _command(command: Any, name: str, parent: Any, epilogs: frozenset[str | None]) -> Iterator[str]:
    if isinstance(command, LazyCommand):
        command = command.loaded()
    context = typer.Context(command, info_name=name, parent=parent, **command.context_settings)
    context.terminal_width = context.max_content_width = _HELP_WIDTH
    children = [(child, command.get_command(context, child)) for child in getattr(command, "commands", ())]
    takes_settings = any(_is_setting(parameter) for parameter in command.params)
    own_epilog = command.epilog
    if parent is not None:
        _hide_what_is_elsewhere(command, children)
    if own_epilog in epilogs:
        command.epilog = None
    depth = len(context.command_path.split()) + 1
    yield f"{'#' * depth} {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if takes_settings:
        yield "Every [setting](configuration.md) is an option, too; `--no-...` switches one off that is on.\n"
    for child, each in children:
        yield from _command(each, child, context, epilogs | {own_epilog})


def _hide_what_is_elsewhere(command: Any, children: list[tuple[str, Any]]) -> None:
    command.add_help_option = False
    command.params = [each for each in command.params if not _is_setting(each) and each.name != "output_format"]
    for _, child in children:
        child.hidden = True  # in the group's list; it follows below its own heading


def _is_setting(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) in {title(group) for group in GROUPS}


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``pulsar-sidecar serve``: one flag for every setting, made from the settings themselves.

Invariant: a setting that exists has a flag with its own help, below the heading of its group; nothing is listed twice
by hand.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from pulsar_sidecar.cli.command_groups import EXIT_CODES
from pulsar_sidecar.cli.connecting import Context
from pulsar_sidecar.settings.fields import GROUPS, default_text, title
from pulsar_sidecar.settings.sources import flag

_HELP = """Run the sidecar until it receives SIGTERM or SIGINT.

Every setting may be given as a flag, as PULSAR_SIDECAR_<NAME>, or in the --config file under its camelCase name; the
connection's settings also in the client.conf that PULSAR_CLIENT_CONF names. The first of these wins.

Example: pulsar-sidecar serve --web-service-url http://broker:8080 --broker-service-url pulsar://broker:6650
--metadata-store-url zk:zookeeper:2181 --topic-two-phase-deletion-enabled"""


Run = Callable[[Context, Mapping[str, str | None], Path | None], None]


class _InGroups(TyperCommand):
    """Command that lists its options below the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            heading = getattr(parameter, "rich_help_panel", None) or "Options"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def command_with_settings(name: str, help_text: str, run: Run) -> typer.Typer:
    """Return a command that calls ``run`` with the settings given as flags, and the file of --config."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=_InGroups, help=help_text, epilog=EXIT_CODES)(_with_flags(run))
    return app


def _with_flags(run: Run) -> Callable[..., None]:
    def command(ctx: Context, config: Path | None = None, **flags: str | bool | None) -> None:
        run(
            ctx,
            {name: str(value).lower() if isinstance(value, bool) else value for name, value in flags.items()},
            config,
        )

    config_option = typer.Option("--config", metavar="FILE", help="Properties file, camelCase keys as in broker.conf.")
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)]
    parameters += [_parameter("config", Annotated[Path | None, config_option])]
    parameters += [
        _parameter(name, _annotation(name, field, title(group)))
        for group in GROUPS
        for name, field in group.model_fields.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect.signature
    command.__annotations__ = {}
    return command


def _serve(ctx: Context, flags: Mapping[str, str | None], config: Path | None) -> None:
    raise typer.Exit(ctx.obj.programs.serve(flags, config))


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(name: str, field: FieldInfo, heading: str) -> object:
    text = " ".join((field.description or "").replace("``", "").split())
    more = "required" if field.is_required() else f"default: {default}" if (default := default_text(field)) else ""
    shown = f"{text}  [{more}]" if more else text
    if field.annotation is bool:
        flags = f"{flag(name)}/--no-{flag(name)[2:]}"
        return Annotated[bool | None, typer.Option(flags, help=shown, rich_help_panel=heading)]
    option = typer.Option(flag(name), metavar=_metavar(field), help=shown, rich_help_panel=heading)
    return Annotated[str | None, option]


def _metavar(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    kinds = {kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)}
    if Path in kinds:
        return "FILE"
    return "NUMBER" if kinds & {int, float} else "TEXT"


app = command_with_settings("serve", _HELP, _serve)

"""``pulsar-sidecar demo``: the main job on a real cluster of this machine."""

from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import CommandGroup
from pulsar_sidecar.cli.exits import EXIT_CODES
from pulsar_sidecar.cli.programs import Programs

_HELP = """Show what the sidecar is for, on a real cluster started on this machine.

Topics are deleted while both brokers are killed: over the brokers' own REST API, and through the sidecar. What is
left behind is counted, found by an audit with both engines, and deleted, until a last audit is clean. Cluster and
sidecar go on running afterwards; `demo down` ends them and removes their files.

It ends with 0 only if all of that came true. Needs PySpark for the Spark job: without it there is nothing to compare.

Example: pulsar-sidecar demo --topics 100"""

_Directory = Annotated[Path | None, typer.Option("--dir", help="Where to keep it. Default: demo, in the cache.")]


def demo_app(programs: Programs) -> typer.Typer:
    """The group ``demo``: alone it plays, with ``down`` it ends."""
    app = typer.Typer(
        name="demo", cls=CommandGroup, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES, help=_HELP
    )

    @app.callback(invoke_without_command=True)
    def _demo(
        ctx: typer.Context,
        directory: _Directory = None,
        topics: Annotated[int, typer.Option(min=1, max=1000, help="How many topics each act deletes.")] = 100,
    ) -> None:
        if ctx.invoked_subcommand is not None:
            return
        from pulsar_sidecar.demo.run import lines

        report = programs.run_demo(directory, topics, output.info)
        output.result("\n".join(lines(report)))
        raise typer.Exit(0 if report.kept_its_promise else 1)

    @app.command("down", help="End the demo's processes and remove its files.", epilog=EXIT_CODES)
    def _down(directory: _Directory = None) -> None:
        programs.tear_demo_down(directory, output.info)
        output.info("the demo is gone: no process and no file is left")

    return app

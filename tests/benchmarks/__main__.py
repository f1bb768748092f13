"""``python -m tests.benchmarks NAME [OPTIONS]`` runs one benchmark, ``... all`` runs each with its defaults.

Every benchmark starts what it needs, measures its contenders side by side in one run, and prints Markdown tables.
Nothing here passes or fails: figures of a machine that is busy with something else mean little.
"""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from types import ModuleType

from tests.benchmarks import (
    at_rest,
    audit,
    broker_questions,
    cancel,
    capacity,
    changes,
    dashboard,
    delayed_index,
    delayed_index_build,
    drain,
    drain_parts,
    dumps,
    duplicates,
    entries,
    exactly_once,
    hanging,
    http_clients,
    index_check,
    index_show,
    inflight,
    latency,
    leak_watch,
    leaks,
    looks,
    memory,
    message_extract,
    parts,
    pass_through,
    pins,
    selections,
    shadow_index,
    topic_deletion,
    visits,
)

BENCHMARKS: Sequence[ModuleType] = (
    drain,
    drain_parts,
    latency,
    inflight,
    memory,
    capacity,
    dumps,
    audit,
    entries,
    broker_questions,
    cancel,
    selections,
    looks,
    at_rest,
    visits,
    changes,
    shadow_index,
    leak_watch,
    leaks,
    delayed_index,
    index_check,
    delayed_index_build,
    index_show,
    message_extract,
    duplicates,
    exactly_once,
    topic_deletion,
    parts,
    hanging,
    http_clients,
    pass_through,
    pins,
    dashboard,
)
"""Modules with NAME, ``add_arguments(parser)`` and ``run(arguments) -> Sequence[Table]``; the docstring's first line
is the help text."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    parsers = {module.NAME: commands.add_parser(module.NAME, help=_first_line(module)) for module in BENCHMARKS}
    for module in BENCHMARKS:
        module.add_arguments(parsers[module.NAME])
    commands.add_parser("all", help="each of them, with its defaults")
    arguments = parser.parse_args()
    _show(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    for module in BENCHMARKS:
        if arguments.name in (module.NAME, "all"):
            chosen = arguments if arguments.name == module.NAME else parsers[module.NAME].parse_args([])
            for table in module.run(chosen):
                _show(table.markdown())


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").splitlines()[0]


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

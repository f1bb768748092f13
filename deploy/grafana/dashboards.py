"""The Grafana dashboards, written to ``dashboards/*.json`` beside this file.

``python -m deploy.grafana.dashboards`` writes them, with ``--check`` it fails when one is out of date (`make generate`,
`make check-generated`).
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.boards.audits import audits
from deploy.grafana.boards.delayed_messages import delayed_messages
from deploy.grafana.boards.deletion import deletion
from deploy.grafana.boards.overview import overview
from deploy.grafana.boards.watched_topics import watched_topics

DIRECTORY: Final = Path(__file__).parent / "dashboards"


def dashboards() -> Mapping[str, Dashboard]:
    """Dashboards by the names of their files."""
    return {
        "overview": overview(),
        "deletion": deletion(),
        "delayed-messages": delayed_messages(),
        "watched-topics": watched_topics(),
        "audits": audits(),
    }


def main(arguments: list[str]) -> int:
    """Write or check the files; return 1 if one is out of date."""
    written = {path.name: path.read_text(encoding="utf-8") for path in DIRECTORY.glob("*.json")}
    made = {
        f"{name}.json": json.dumps(each, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, each in dashboards().items()
    }
    stale = sorted(name for name in written.keys() | made.keys() if written.get(name) != made.get(name))
    if arguments == ["--check"]:
        if stale:
            sys.stderr.write(f"out of date in {DIRECTORY}: {', '.join(stale)}; run: make generate\n")
        return 1 if stale else 0
    for name in stale:
        if name in made:
            (DIRECTORY / name).write_text(made[name], encoding="utf-8")
        else:
            (DIRECTORY / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

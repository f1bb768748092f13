"""Cancelling by what messages are: a preview, its confirmation, and the cancelling itself.

Half of the messages are due an hour later than the others, in runs side by side; the later half is selected.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import requests
from pulsar_sidecar.model.names import parse_topic_name

from tests.benchmarks.clusters import ProcessorTime, add_cluster_argument, benchmark_sidecars, wait_until_quiet
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.topics import unique
from tests.reporting import Table

NAME = "selections"
_DELAY_MS = 3_600_000
_RUN = 20
_PATIENCE_SECONDS = 600
_SETTINGS = {"delayed_message_cancelling_enabled": "true", "log_level": "WARNING"}
_HEADER = ("", "messages", "seconds", "to the first verdict", "messages/s", "CPU: sidecar", "bookies")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=100_000, help="that wait; every other one is selected")
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with benchmark_sidecars(arguments.cluster) as (addresses, sidecars):
        topic = DelayedTopic(addresses, parse_topic_name(f"persistent://public/default/selections-{unique()}"))
        try:
            topic.subscribe("s", SHARED)
            early = now_ms() + _DELAY_MS
            late = early + _DELAY_MS
            topic.send(arguments.messages, [late if n // _RUN % 2 else early for n in range(arguments.messages)])
            sidecar = sidecars.start_with_defaults(**_SETTINGS)
            wait_until_quiet(addresses)
            url = f"{sidecar.url}{topic.path}/delayedMessages"
            pids = {**addresses.members, "sidecar": sidecar.pid}
            rows = []
            used = ProcessorTime(pids)
            preview = _asked(f"{url}/preview", {"dueFrom": late})
            found = json.loads(preview.lines[0])
            rows.append(preview.row("preview", arguments.messages, used))
            used = ProcessorTime(pids)
            cancelled = _asked(f"{url}/cancel", {**found["selection"], "hash": found["hash"]})
            good = sum(json.loads(line)["cancelled"] for line in cancelled.lines)
            assert good == found["count"] == len(cancelled.lines), (good, found["count"], len(cancelled.lines))
            rows.append(cancelled.row("confirmation and cancelling", good, used))
            return [Table(f"A selection of {good:,} of {arguments.messages:,} delayed messages", _HEADER, rows)]
        finally:
            topic.close()


@dataclass(frozen=True, slots=True)
class _Answered:
    seconds: float
    first: float
    lines: Sequence[bytes]

    def row(self, name: str, count: int, used: ProcessorTime) -> list[str]:
        cpu = used.used()
        bookies = sum(seconds for process, seconds in cpu.items() if process.startswith("bookie"))
        rate = f"{count / self.seconds:,.0f}"
        return [
            name,
            f"{count:,}",
            f"{self.seconds:.2f}",
            f"{self.first:.2f} s",
            rate,
            f"{cpu['sidecar']:.2f} s",
            f"{bookies:.2f} s",
        ]


def _asked(url: str, body: object) -> _Answered:
    begin = time.perf_counter()
    with requests.post(url, json=body, stream=True, timeout=_PATIENCE_SECONDS) as answer:
        assert answer.ok, answer.text
        lines = answer.iter_lines()
        first = next(lines)
        first_at = time.perf_counter() - begin
        rest = list(lines)
    return _Answered(time.perf_counter() - begin, first_at, [first, *rest])

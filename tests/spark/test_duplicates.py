"""Both engines give the same rows and the same summary of an extract, and refuse the same ones."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.dataset as ds
from pulsar_sidecar.adapters.parquet.directories import demand_files, demand_sha256
from pulsar_sidecar.bootstrap.deduplication_files import look_for_duplicates
from pulsar_sidecar.features.duplicates.requests import DuplicatesRequest
from pulsar_sidecar.features.duplicates.rows import MessageKind, MessageRow, PayloadState
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries
from pulsar_sidecar.reports.documents import SUMMARY_NAME

from tests.fakes.message_extracts import Limitation, Topics, write_extract
from tests.spark.comparing import Comparison
from tests.unit.duplicates.rows import Log, log_of

_SECONDS = 600
_TABLES = ("findings", "producers", "topics")
_TOPIC = "persistent://public/default/{}"


class Extracts(Comparison):
    """Extracts that both engines look through."""

    def write(self, topics: Topics, unseen: Limitation | None = None, rows_of_a_group: int = 4) -> Path:
        return write_extract(self.place() / "extract", topics, unseen, rows_of_a_group)

    def look(self, extract: Path) -> None:
        number = len(self.orders)
        output = extract.parent / f"embedded-{number}"
        request = DuplicatesRequest(extract, output)
        spark = extract.parent / f"spark-{number}"
        self.add(lambda: look_for_duplicates(request, lambda _: None), output, extract=extract, output=spark)


def comparable(directory: Path) -> dict[str, Any]:
    """All that is in a directory but what distinguishes the engines, and in which order rows and files are."""
    summary = json.loads((directory / SUMMARY_NAME).read_text())
    report = (directory / "report.html").read_text()
    tables = {name: ds.dataset(directory / name, format="parquet").to_table().to_pylist() for name in _TABLES}
    return {
        "summary": {name: value for name, value in summary.items() if name not in ("engine", "files")},
        "report": report.replace("spark engine", "embedded engine").replace(str(directory), "PLACE"),
        **{name: sorted(rows, key=str) for name, rows in tables.items()},
    }


def demand_whole(directory: Path) -> None:
    files = json.loads((directory / SUMMARY_NAME).read_text())["files"]
    demand_files(directory, set(files), SUMMARY_NAME)
    for name, sha256 in files.items():
        demand_sha256(directory / name, sha256)


def random_log(random: Random, rows: int, producers: int, ids: int) -> list[MessageRow]:
    """Ids that mostly rise, and anything else."""
    log, rising = Log(), dict.fromkeys(range(producers), 0)
    for _ in range(rows):
        producer = random.randrange(producers)
        rising[producer] += random.choice((1, 1, 1, 2))
        log.add(
            random.choice((rising[producer], rising[producer], random.randrange(ids))),
            random.randrange(3),
            producer=f"p-{producer}",
            replicated_from=random.choice((None, None, "r1")),
            kind=random.choice((*[MessageKind.MESSAGE] * 4, *MessageKind)),
            state=random.choice((*[PayloadState.READ] * 4, *PayloadState)),
            **random.choice(({}, {}, {"chunk_id": 0, "chunks": 2}, {"chunk_id": 1, "chunks": 2})),
        )
    return log.rows


def unseen(cause: UnseenCause, last_entry_id: int | None = 4) -> UnseenEntries:
    last = None if last_entry_id is None else EntryId(last_entry_id)
    return UnseenEntries(LedgerId(900), EntryId(0), last, cause, "why")


def test_both_engines_agree(tmp_path: Path) -> None:
    comparison = Extracts(tmp_path, _SECONDS)
    random = Random(7)
    topics = {
        **{_TOPIC.format(name): random_log(random, 60, 3, 30) for name in ("a", "b", "c")},
        # One producer has everything, and one id is all that it uses.
        _TOPIC.format("skewed"): random_log(random, 300, 1, 300),
        _TOPIC.format("constant"): random_log(random, 100, 1, 1),
        _TOPIC.format("extremes"): log_of(-(2**63), 2**63 - 1, -(2**63), 0, 5, 1, 2),
    }
    ranges = {
        _TOPIC.format("a"): [unseen(UnseenCause.TRIMMED)],
        _TOPIC.format("offloaded"): [unseen(UnseenCause.OFFLOADED), unseen(UnseenCause.UNREADABLE, None)],
    }
    skewed = comparison.write(topics, ranges, rows_of_a_group=17)
    comparison.look(skewed)
    comparison.look(skewed)
    rising = log_of(*range(0, 90, 3))
    for other in ({_TOPIC.format("clean"): rising}, {}):
        comparison.look(comparison.write(other))
    out_of_order = [*rising[:9], rising[10], rising[9], *rising[11:]]
    comparison.look(comparison.write({_TOPIC.format("out-of-order"): out_of_order}))
    damaged = comparison.write({_TOPIC.format("damaged"): rising})
    part = damaged / "messages" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    comparison.look(damaged)
    for output in comparison.agreed(comparable):
        demand_whole(output)
    assert [isinstance(outcome, str) for outcome in comparison.outcomes] == [False, False, False, False, True, True]

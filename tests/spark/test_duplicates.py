"""Both engines give the same rows and the same summary of an extract, and refuse the same ones."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.dataset as ds
import pytest
from pulsar_sidecar.adapters.parquet.directories import demand_files, demand_sha256
from pulsar_sidecar.analysis.documents import MANIFEST_NAME, SUMMARY_NAME
from pulsar_sidecar.bootstrap.deduplication_files import look_for_duplicates
from pulsar_sidecar.deduplication.verifying.duplicates.requests import DuplicatesRequest
from pulsar_sidecar.deduplication.verifying.rows import MessageKind, MessageRow, PayloadState
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries

from tests.fakes.message_extracts import Limitation, Topics, write_extract
from tests.made_audits import open_to_others
from tests.unit.deduplication.verifying.rows import Log

_SECONDS = 600
_TABLES = ("findings", "producers", "topics")
_TOPIC = "persistent://public/default/{}"


@dataclass
class Comparison:
    """Extracts that the embedded engine has looked through, for Spark to repeat all at once."""

    directory: Path
    orders: list[dict[str, str]] = field(default_factory=list)
    outcomes: list[Path | str] = field(default_factory=list)

    def add(self, topics: Topics, unseen: Limitation | None = None, rows_of_a_group: int = 4) -> None:
        """An extract to be looked through."""
        self.look(write_extract(self.place() / "extract", topics, unseen, rows_of_a_group))

    def look(self, extract: Path) -> None:
        """Look through one."""
        number = len(self.orders)
        output = extract.parent / f"embedded-{number}"
        self.orders.append({"extract": str(extract), "output": str(extract.parent / f"spark-{number}")})
        try:
            look_for_duplicates(DuplicatesRequest(extract, output), lambda _: None)
        except InvalidInputError as error:
            self.outcomes.append(str(error))
        else:
            self.outcomes.append(output)

    def place(self) -> Path:
        place = self.directory / str(len(self.orders))
        place.mkdir()
        return place

    def demand_agreement(self) -> None:
        orders, answers = self.directory / "orders", self.directory / "answers"
        orders.write_text("".join(f"{json.dumps(order)}\n" for order in self.orders))
        command = [sys.executable, "-m", "tests.spark.jobs", str(orders), str(answers)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        assert ran.returncode == 0, ran.stderr[-3000:]
        reasons = [json.loads(line) for line in answers.read_text().splitlines()]
        for order, outcome, reason in zip(self.orders, self.outcomes, reasons, strict=True):
            if isinstance(outcome, str):
                assert reason == outcome, order
            else:
                assert reason is None, order
                assert comparable(Path(order["output"])) == comparable(outcome), order
                assert open_to_others(Path(order["output"])) == []
                demand_whole(Path(order["output"]))


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


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    return Comparison(tmp_path)


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


def log_of(*sequence_ids: int) -> list[MessageRow]:
    log = Log()
    for sequence_id in sequence_ids:
        log.add(sequence_id)
    return log.rows


def test_both_engines_agree(comparison: Comparison) -> None:
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
    comparison.add(topics, ranges, rows_of_a_group=17)
    comparison.look(Path(comparison.orders[0]["extract"]))
    rising = log_of(*range(0, 90, 3))
    comparison.add({_TOPIC.format("clean"): rising})
    comparison.add({})
    comparison.add({_TOPIC.format("out-of-order"): [*rising[:9], rising[10], rising[9], *rising[11:]]})
    damaged = write_extract(comparison.place() / "extract", {_TOPIC.format("damaged"): rising})
    part = damaged / "messages" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    comparison.look(damaged)
    comparison.demand_agreement()
    assert [isinstance(outcome, str) for outcome in comparison.outcomes] == [False, False, False, False, True, True]


def test_a_directory_that_is_no_extract_is_refused(tmp_path: Path) -> None:
    extract = write_extract(tmp_path / "extract", {})
    (extract / MANIFEST_NAME).unlink()
    with pytest.raises(InvalidInputError, match="no readable manifest"):
        look_for_duplicates(DuplicatesRequest(extract, tmp_path / "found"), lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["extract"]

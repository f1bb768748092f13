"""The counts of fault tests, their page, and the faults' written form."""

import json
from pathlib import Path

import pytest
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.model.errors import TemporaryError

from tests.cluster.failing_sidecar import (
    OF_THE_WATCH,
    POINTS,
    REPLAYED_IN_MEMORY,
    Effect,
    FailsAt,
    Fault,
    parse_fault,
    points_of,
)
from tests.cluster.oracles import Outcome
from tests.faults.harness import Round
from tests.faults.report import BEGIN, END, main
from tests.faults.tally import Tally

ABOUT = {"date": "2026-01-02", "pulsar": "4.0.8", "pulsar-client": "3.13.0", "kazoo": "2.11.0"}


def processed(decision: str, reason: str) -> Outcome:
    return Outcome("settled", "sidecar-1", {"ledgerId": 7, "decision": decision, "reason": reason})


def test_rng_depends_on_seed_test_and_round_alone() -> None:
    first = Round("a", 1).rng("t").random()
    assert first == Round("a", 1).rng("t").random()
    assert len({first, Round("b", 1).rng("t").random(), Round("a", 2).rng("t").random()}) == 3
    assert first != Round("a", 1).rng("u").random()


def test_a_run_of_some_tests_leaves_the_others_counts(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    old, new = Tally("1"), Tally("2")
    old.line("a").rounds = 1
    old.line("b").rounds = 2
    old.save(path, ABOUT)
    new.line("b").rounds = 3
    new.save(path, ABOUT)
    found = json.loads(path.read_text())
    assert {name: (line["seed"], line["rounds"]) for name, line in found.items()} == {"a": ("1", 1), "b": ("2", 3)}


def test_retries_are_no_ends() -> None:
    tally = Tally("1")
    tally.line("a").ended(2, [processed("retry", "too-young"), processed("deleted", "unreferenced")])
    assert tally.line("a").outcomes == {"deleted: unreferenced": 1}


def test_only_the_place_of_the_counts_is_replaced(tmp_path: Path) -> None:
    tally = Tally("4711")
    line = tally.line("tests/faults/test_x.py::test_y")
    line.rounds = 20
    line.fault("sidecar killed", 40)
    line.ended(60, [processed("deleted", "unreferenced")])
    counts, page = tmp_path / "counts.json", tmp_path / "page.md"
    tally.save(counts, ABOUT)
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    main(counts, page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| `x: y` | 4711 | 20 | 40 | 60 | 0 |" in text
    assert "All records ended: 1 deleted: unreferenced." in text
    assert "| sidecar killed | 40 |" in text


def test_a_page_without_a_place_for_counts_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place")
    with pytest.raises(SystemExit, match="no place"):
        main(tmp_path / "none.json", page)


@pytest.mark.parametrize("effect", Effect)
def test_faults_are_read_as_they_are_written(effect: Effect) -> None:
    for point in POINTS:
        fault = Fault(effect, point, 3)
        assert parse_fault(str(fault)) == fault


def test_every_step_has_a_point_before_and_after_it() -> None:
    elsewhere = points_of((*OF_THE_WATCH, *REPLAYED_IN_MEMORY))
    assert len({*POINTS, *elsewhere}) == len(POINTS) + len(elsewhere) == 2 * (len(Step) - 1)


def test_a_fault_comes_at_its_occurrence_only() -> None:
    steps = FailsAt([Fault(Effect.FAIL, "after:records-sent", 2)])
    with steps.taking(Step.RECORDS_SENT):
        pass
    steps.about_to(Step.RECORDS_SENT)
    with pytest.raises(TemporaryError, match="fail:after:records-sent:2"):
        steps.reached(Step.RECORDS_SENT)
    with steps.taking(Step.RECORDS_SENT):
        pass

"""Each alert fires on series of real sidecars, with the text that an operator reads, and not before it should.

``tests/alerts/acts.py`` has recorded the series. A recorded second is played as a minute, and the end of a recording is
held for as long as an alert waits. Where this machine has no room for a figure, such as 10 GiB, the test scales it.
"""

import subprocess
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.alerts.cases import CASES, DAY, HOUR, QUIET, Case
from tests.alerts.recording import RECORDED, notation, samples_of
from tests.alerts.rules import FILES, RULES
from tests.cluster.go_tools import PROMTOOL, tool_or_skip

_AGES = ("_age_seconds", "snapshot_lag_seconds")
_TIME = "_timestamp_seconds"


def played(case: Case) -> tuple[list[dict[str, str]], int]:
    """A recording as promtool's input, and how many minutes it takes."""
    inputs, minutes = [], 0
    text = (RECORDED / f"{case.recording}.series").read_text()
    for part, other in case.changed.items():
        assert part in text, part
        text = text.replace(part, other)
    for line in text.splitlines():
        series, _, values = line.rpartition("} ")
        name = series.partition("{")[0]
        samples = samples_of(values)[: case.until]
        minutes = max(minutes, len(samples) + case.held)
        held = _held(name, samples, case.held, case.scaled.get(name, 1.0))
        inputs.append({"series": f"{series}}}", "values": notation(held)})
    if case.added is not None:
        series, _, values = case.added.rpartition("} ")
        inputs.append({"series": f"{series}}}", "values": values})
    return inputs, minutes


def _held(name: str, samples: Sequence[float | None], held: int, factor: float) -> list[float | None]:
    """Ages grow on, and times are counted from the beginning, where promtool's clock starts."""
    began = next((each for each in samples if each is not None), 0.0) if name.endswith(_TIME) else 0.0
    last = samples[-1]
    step = 60.0 if name.endswith(_AGES) else 0.0
    more = [None if last is None else last + step * minute for minute in range(1, held + 1)]
    return [None if each is None else (each - began) * factor for each in (*samples, *more)]


def run_promtool(tmp_path: Path, files: Sequence[Path], inputs: Sequence[object], tests: Sequence[object]) -> None:
    document = {
        "rule_files": [str(file) for file in files],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": inputs, "alert_rule_test": tests}],
    }
    text = StringIO()
    YAML(typ="safe").dump(document, text)
    file = tmp_path / "alerts.test.yml"
    file.write_text(text.getvalue())
    demand_success("test", "rules", str(file))


def demand_success(*arguments: str) -> None:
    command = [tool_or_skip(PROMTOOL), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def at(minutes: int, alert: str, *expected: object) -> dict[str, object]:
    return {"eval_time": f"{minutes}m", "alertname": alert, "exp_alerts": list(expected)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires(case: Case, tmp_path: Path) -> None:
    inputs, minutes = played(case)
    tests = [at(QUIET, case.alert), at(minutes - 1, case.alert, case.expected())]
    rule = RULES[case.alert]
    alone = tmp_path / "alone.rules.yml"  # its neighbours and their series are evaluated as often, for up to two days
    YAML(typ="safe").dump({"groups": [{"name": "alone", "rules": [rule]}]}, alone)
    asked = [each for each in inputs if each["series"].partition("{")[0] in rule["expr"]]
    run_promtool(tmp_path, [alone], asked, tests)


def test_every_alert_is_tried() -> None:
    assert {case.alert for case in CASES} == set(RULES)


def test_no_alert_fires_while_two_sidecars_are_healthy(tmp_path: Path) -> None:
    inputs, minutes = played(Case("", "sidecars-end", DAY + HOUR, "", until=QUIET))
    # Without any audit, an audit is overdue.
    alerts = sorted(RULES.keys() - {"PulsarLedgerAuditOverdue"})
    run_promtool(tmp_path, FILES, inputs, [at(minutes - 1, alert) for alert in alerts])


def test_the_rules_are_valid() -> None:
    demand_success("check", "rules", *map(str, FILES))

"""The last act: what the brokers leaked is found by audits, handed to the sidecar, and gone.

Everything is done with the commands that a user would type; the figures are read from what they leave.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from service.local_cluster.addresses import ClusterAddresses
from service.local_cluster.java import find_java
from service.model.clocks import Clock
from service.model.errors import TemporaryError
from service.model.ids import LedgerId

_JOB: Final = "pyspark_jobs.orphan_ledgers.job"
_FINDINGS: Final = 2
_COMMAND_SECONDS: Final = 900
_GONE_SECONDS: Final = 90.0
_ROWS: Final = "1000000"

IMPATIENT: Final = (
    "--min-age-hours", "0", "--allow-young", "--look-window-hours", "0", "--max-share", "1", "--max-shrink", "1",
)  # fmt: skip
"""An audience does not sit through three days, and a small cluster's leaks are a large share of it."""


@dataclass(frozen=True, slots=True)
class AuditAct:
    """What the audits found and what became of it.

    Attributes:
        first_condemned: ledgers condemned at the first look, which must be none.
        planned: ledgers in the plan of the second look.
        leaked: of those that leaked before, and how many of them were in the plan.
        left: how many of the plan's and of those that leaked still exist at the end.
        orphans_at_end: what the last audit calls unreferenced, whoever left it.
        spark_agrees: whether the Spark job's plan was the same; None where there is no Spark.
        report: the page to look at.
    """

    first_condemned: int
    planned: int
    leaked: int
    leaked_in_plan: int
    left: int
    orphans_at_end: int
    spark_agrees: bool | None
    report: Path


class AuditStory:
    """Plays the act in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        addresses: ClusterAddresses,
        clock: Clock,
        say: Callable[[str], None],
        existing: Callable[[frozenset[LedgerId]], frozenset[LedgerId]],
    ) -> None:
        self._directory = directory
        self._addresses = addresses
        self._clock = clock
        self._say = say
        self._existing = existing
        self._never = threading.Event()

    def play(self, leaked: frozenset[LedgerId]) -> AuditAct:
        """Two looks, a plan, its approval, and a last look."""
        self._say("   an audit condemns what two looks, half a day apart, found unreferenced and three days old;")
        self._say(f"   this audience gets both at once: {' '.join(IMPATIENT)}")
        first = self._audit("first", None)
        self._say("   a first look condemns nothing; the second one makes the plan")
        second = self._audit("second", "first")
        condemned = self._rows("second", "condemned")
        spark_agrees = self._on_spark()
        self._explain(min(condemned, default=None))
        self._apply(second)
        left = self._wait_until_gone(leaked | {LedgerId(ledger_id) for ledger_id in condemned})
        last = self._audit("last", "second")
        return AuditAct(
            first_condemned=_planned(first),
            planned=_planned(second),
            leaked=len(leaked),
            leaked_in_plan=len(leaked & condemned),
            left=len(left),
            orphans_at_end=sum(count["ledgers"] for count in last["orphans"].values()),
            spark_agrees=spark_agrees,
            report=self._directory / "second" / "report.html",
        )

    def _audit(self, name: str, previous: str | None) -> dict[str, Any]:
        listing, dump = f"{name}-listing", f"{name}-dump"
        store = self._addresses.metadata_store_url
        self._run(
            "ledgers", "list", "--source", "metadata", "--metadata-store-url", store, "--with-metadata",
            "--output", listing,
        )  # fmt: skip
        self._run("metadata", "dump", "--source", f"zk://{store.removeprefix('zk:')}", "--output", dump)
        self._run("audit", "run", *_inputs(name, previous), "--output", name, *IMPATIENT)
        summary = self._shown(name)["summary"]
        for standing, count in summary["orphans"].items():
            self._say(f"   audit {name}: {count['ledgers']} unreferenced ledgers are {standing}")
        if not summary["orphans"]:
            self._say(f"   audit {name}: no unreferenced ledger among {summary['existing']['ledgers']}")
        return dict(summary)

    def _on_spark(self) -> bool | None:
        if find_spec("pyspark") is None or find_spec("pyspark_jobs.orphan_ledgers") is None or find_spec(_JOB) is None:
            self._say("   (PySpark is not installed: the Spark job is left out)")
            return None
        self._say("   the same dump and listing again, with the Spark job")
        environment = os.environ | {"JAVA_HOME": str(Path(find_java().executable).resolve().parents[1])}
        self._start(
            [sys.executable, "-m", _JOB, *_inputs("second", "first"), "--output", "second-on-spark", *IMPATIENT],
            environment,
        )
        agrees = [self._shown(name)["summary"]["plan"] for name in ("second", "second-on-spark")]
        same = agrees[0] == agrees[1] and self._orphans("second") == self._orphans("second-on-spark")
        self._say(f"   its answer is {'the same, row by row' if same else 'ANOTHER one'}")
        return same

    def _explain(self, ledger_id: int | None) -> None:
        if ledger_id is not None:
            text = self._run("audit", "explain", "second", str(ledger_id))
            for line in text.splitlines():
                self._say(f"     | {line}")

    def _apply(self, summary: dict[str, Any]) -> None:
        if not _planned(summary):
            self._say("   nothing is condemned, so there is nothing to apply")
            return
        plan = summary["plan"]["sha256"]
        self._say(f"   the plan's hash is approved ({plan[:12]}...), and the plan goes to the sidecar")
        self._run(
            "audit", "apply", "second", "--execute", "--plan", plan,
            "--metadata-store-url", self._addresses.metadata_store_url,
            "--broker-service-url", self._addresses.broker_service_url,
        )  # fmt: skip

    def _wait_until_gone(self, ledger_ids: frozenset[LedgerId]) -> frozenset[LedgerId]:
        give_up = self._clock.monotonic_seconds() + _GONE_SECONDS
        while (left := self._existing(ledger_ids)) and self._clock.monotonic_seconds() < give_up:
            self._clock.wait_seconds(1.0, self._never)
        self._say(f"   {len(left)} of the {len(ledger_ids)} ledgers are left")
        return left

    def _rows(self, name: str, standing: str) -> frozenset[int]:
        return frozenset(row["ledger_id"] for row in self._orphans(name) if row["standing"] == standing)

    def _orphans(self, name: str) -> list[dict[str, Any]]:
        return list(self._shown(name, "--orphans", "--limit", _ROWS)["orphans"]["rows"])

    def _shown(self, name: str, *more: str) -> dict[str, Any]:
        return dict(json.loads(self._run("audit", "show", name, "--format", "json", *more)))

    def _run(self, *arguments: str) -> str:
        if arguments[:2] != ("audit", "show"):
            self._say(f"   $ pulsar-sidecar {' '.join(arguments)}")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
        return self._start([sys.executable, "-m", "service", *arguments], inherited)

    def _start(self, command: list[str], environment: dict[str, str]) -> str:
        self._directory.mkdir(exist_ok=True)
        what = " ".join(command[2:5])
        try:
            ended = subprocess.run(  # noqa: S603 - our own command line, without a shell
                command,
                cwd=self._directory,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_COMMAND_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise TemporaryError(f"{what} took longer than {_COMMAND_SECONDS} s; look at the machine's load") from error
        if ended.returncode not in (0, _FINDINGS):
            raise TemporaryError(f"{what} ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return ended.stdout


def _inputs(name: str, previous: str | None) -> list[str]:
    before = [] if previous is None else ["--previous", previous]
    return ["--dump", f"{name}-dump", "--listing", f"{name}-listing", *before]


def _planned(summary: dict[str, Any]) -> int:
    return 0 if summary["plan"] is None else int(summary["plan"]["rows"])

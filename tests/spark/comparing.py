"""Inputs that the embedded engine has worked on, for a Spark job to repeat all at once."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_sidecar.model.errors import InvalidInputError

from tests.made_audits import open_to_others


@dataclass
class Comparison:
    """Outcomes of the embedded engine: a directory, or the reason why there is none."""

    directory: Path
    seconds: int
    orders: list[dict[str, str | None]] = field(default_factory=list)
    outcomes: list[Path | str] = field(default_factory=list)

    def place(self) -> Path:
        """Return an empty directory for the next one."""
        place = self.directory / str(len(self.orders))
        place.mkdir()
        return place

    def add(self, work: Callable[[], object], embedded: Path, **order: Path | None) -> Path | None:
        """Let the embedded engine work, which writes ``embedded``; None if nothing can be made of these inputs."""
        self.orders.append({name: None if path is None else str(path) for name, path in order.items()})
        try:
            work()
        except InvalidInputError as error:
            self.outcomes.append(str(error))
            return None
        self.outcomes.append(embedded)
        return embedded

    def agreed(self, comparable: Callable[[Path], object]) -> Iterator[Path]:
        """Demand the same outcomes of Spark, and yield the directories that it wrote."""
        orders, answers = self.directory / "orders", self.directory / "answers"
        orders.write_text("".join(f"{json.dumps(order)}\n" for order in self.orders))
        command = [sys.executable, "-m", "tests.spark.jobs", str(orders), str(answers)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.seconds)
        assert ran.returncode == 0, ran.stderr[-3000:]
        reasons = [json.loads(line) for line in answers.read_text().splitlines()]
        for order, outcome, reason in zip(self.orders, self.outcomes, reasons, strict=True):
            assert reason == (outcome if isinstance(outcome, str) else None), order
            if isinstance(outcome, Path):
                output = Path(str(order["output"]))
                assert comparable(output) == comparable(outcome), order
                assert open_to_others(output) == []
                yield output

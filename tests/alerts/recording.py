"""Series that a Prometheus would have of real sidecars, as a file that promtool reads.

A file has one series a line, with a sample for each second, in promtool's notation: ``3+0x9`` is ten times 3, ``5+1x9``
counts on from 5, ``stale`` ends a series, ``_x9`` is nine times nothing. Labels are those that Prometheus would
add; ``instance`` is the sidecar's name. Only metrics that alerts use are kept, and no counter that stayed at 0.
"""

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.alerts.rules import FILES
from tests.cluster.background import running_until
from tests.cluster.choosing import PROJECT
from tests.cluster.sidecars import SidecarProcess

RECORDED: Final = PROJECT / "tests" / "alerts" / "recorded"
_JOB: Final = "pulsar-sidecar"
_ANSWER_SECONDS: Final = 5.0
_COUNTERS: Final = ("_total", "_count")
_WORTH_A_STEP: Final = 3
_EXACT: Final = 100_000
"""Smaller figures have six digits."""
_PART: Final = re.compile(r"(.+?)(?:(?<!e)([+-][^+x]+)x(\d+))?")
_NAMESPACE_OF_A_TEST: Final = re.compile(r"\bt-[0-9a-f]{8}\b")
Samples = Sequence[float | None]


def asked_for() -> frozenset[str]:
    """Return the metrics that alerts use."""
    texts = [path.read_text() for path in FILES]
    return frozenset(re.findall(r"\b(?:pulsar|process)_\w+", " ".join(texts)))


class Recorder:
    """Looks at sidecars, and at files that audits leave, once a second."""

    def __init__(self, sidecars: Sequence[SidecarProcess], files: Sequence[Path] = ()) -> None:
        self._sidecars, self._files, self._asked = sidecars, files, asked_for()
        self._series: dict[str, list[float | None]] = {}
        self._looks = 0

    def run(self, stop: threading.Event) -> None:
        """Take samples until stopped, and one afterwards."""
        while True:
            began = time.monotonic()
            self._look()
            if stop.wait(max(0.0, 1 - (time.monotonic() - began))):
                self._look()
                return

    def _look(self) -> None:
        for sidecar in self._sidecars:
            try:
                answer = requests.get(f"{sidecar.url}/metrics", timeout=_ANSWER_SECONDS)
                text = answer.text if answer.ok else None
            except requests.RequestException:
                text = None
            added = {"instance": f"{sidecar.name}:8750", "job": _JOB}
            self._note("up", added, 0.0 if text is None else 1.0)
            self._note_all(text or "", added)
        for file in self._files:
            if file.exists():
                self._note_all(file.read_text(), {"instance": "audits:9100", "job": "node"})
        self._looks += 1

    def _note_all(self, text: str, added: Mapping[str, str]) -> None:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in self._asked:
                    own = {f"exported_{name}" if name in added else name: each for name, each in sample.labels.items()}
                    self._note(sample.name, {**own, **added}, sample.value)

    def _note(self, name: str, labels: Mapping[str, str], value: float) -> None:
        shown = ", ".join(f'{label}="{labels[label]}"' for label in sorted(labels))
        samples = self._series.setdefault(f"{name}{{{shown}}}", [])
        samples += [None] * (self._looks - len(samples))
        samples.append(value)

    def lines(self) -> Iterator[str]:
        for series, samples in sorted(self._series.items()):
            if not series.partition("{")[0].endswith(_COUNTERS) or any(samples):
                yield f"{series} {notation([*samples, *[None] * (self._looks - len(samples))])}"


def notation(samples: Samples) -> str:
    """Return samples as promtool reads them."""
    parts: list[str] = []
    position = 0
    while position < len(samples):
        first = samples[position]
        if first is None:
            run = _run(samples, position, 0.0)
            # Prometheus marks the end of a series: without that, a query would find its last sample for five minutes.
            parts += ["stale"] if parts else []
            parts += [f"_x{run - 1}" if parts else f"_x{run}"] if run > 1 or not parts else []
        else:
            following = samples[position + 1] if position + 1 < len(samples) else None
            step = 0.0 if following is None else following - first
            run = _run(samples, position, step)
            if run < _WORTH_A_STEP and step:
                run, step = 1, 0.0
            more = f"{'-' if step < 0 else '+'}{_number(abs(step))}x{run - 1}" if run > 1 else ""
            parts.append(_number(first) + more)
        position += run
    return " ".join(parts)


def samples_of(text: str) -> list[float | None]:
    """Return the samples that a notation stands for."""
    samples: list[float | None] = []
    for part in text.split():
        if part == "stale":
            samples.append(None)
        elif part.startswith("_"):
            samples += [None] * int(part.removeprefix("_x") or 1)
        else:
            found = _PART.fullmatch(part)
            assert found, part
            first, step, more = float(found[1]), float(found[2] or 0), int(found[3] or 0)
            samples += [first + step * number for number in range(more + 1)]
    return samples


def _run(samples: Samples, start: int, step: float) -> int:
    """Number of samples for which a value lasts, or counts on by the same step."""
    first, length = samples[start], 1
    while start + length < len(samples):
        expected = None if first is None else first + step * length
        if samples[start + length] != expected:
            break
        length += 1
    return length


def _number(value: float) -> str:
    return f"{value:.6g}" if abs(value) < _EXACT else f"{value:.12g}"


@contextmanager
def recording(name: str, *sidecars: SidecarProcess, files: Sequence[Path] = ()) -> Iterator[None]:
    """Record the sidecars' metrics within the block, and keep them under this name."""
    stop, recorder = threading.Event(), Recorder(sidecars, files)
    try:
        with running_until(stop, [partial(recorder.run, stop)]):
            yield
    finally:
        RECORDED.mkdir(exist_ok=True)
        series = "".join(f"{line}\n" for line in recorder.lines())
        (RECORDED / f"{name}.series").write_text(_NAMESPACE_OF_A_TEST.sub("recorded", series))

"""Sidecars that die or fail at a chosen step; production code has no switch for that.

    python -m tests.cluster.failing_sidecar crash:after:ledgers-deleted:3     # settings by PULSAR_SIDECAR_*
    python -m tests.cluster.failing_sidecar --nursery            # starts many, and commands, see `run_nursery`

Each runs `bootstrap.app.serve` like ``pulsar-sidecar serve``, with another listener for its steps.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NoReturn, assert_never

import fastapi._compat.v2
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from pulsar_sidecar.bootstrap.app import serve
from pulsar_sidecar.bootstrap.features import FEATURES
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import TemporaryError
from pydantic import TypeAdapter

KILLED = 137
"""Exit code of a process that SIGKILL ended."""

INJECTED = "injected fault: "
"""Beginning of the log line that names the fault."""

_IMPORTED_LATE = (
    *("uvicorn.lifespan.off", "uvicorn.loops.uvloop", "uvicorn.protocols.http.auto", "netrc"),
    "anyio._backends._asyncio",
    # Of commands.
    *("pulsar_sidecar.bootstrap.commands", "pulsar_sidecar.bootstrap.drained", "pulsar_sidecar.bootstrap.exactly_once"),
    *("pulsar_sidecar.cli.commands.whoami", "pulsar_sidecar.features.doctor.cli"),
    "pulsar_sidecar.features.publishing.cli",
)
_PR_SET_PDEATHSIG = 1
_USURPATIONS = 3


class Effect(Enum):
    """Effect of a fault."""

    CRASH = "crash"
    """The process ends at once, like after ``kill -9``."""
    FAIL = "fail"
    """The step fails, like after a lost response."""
    FREEZE = "freeze"
    """The process stops, like after SIGSTOP, until a test resumes it."""
    EXPIRE = "expire"
    """The process's session of the metadata store expires, like after a long silence."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at one occurrence of a point, counted from 1; points are ``before:<step>`` and ``after:<step>``."""

    effect: Effect
    point: str
    occurrence: int = 1

    def __str__(self) -> str:
        return f"{self.effect.value}:{self.point}:{self.occurrence}"


ONCE_IN_A_CLUSTERS_LIFE = Step.SIGNING_KEY_CREATED
OF_THE_WATCH = (Step.LEAK_KEPT, Step.LEAKS_APPENDED, Step.LEAK_FORGOTTEN)
"""Steps that no call reaches, only a watching sidecar when brokers leak."""
REPLAYED_IN_MEMORY = (
    Step.NAMESPACE_PROGRESS_KEPT,
    Step.NAMESPACE_ASKED,
    Step.NAMESPACE_NODES_REMOVED,
    Step.LEFTOVER_NODE_REMOVED,
    Step.BUCKET_PUT_BACK,
)
"""Steps of deletions of namespaces and of damaged schemas or indexes: `unit.ledger_deletion` stops the service
around each."""


def points_of(steps: Iterable[Step]) -> tuple[str, ...]:
    """Return the points before and after each step."""
    return tuple(f"{when}:{step.value}" for step in steps for when in ("before", "after"))


POINTS = points_of(step for step in Step if step not in (ONCE_IN_A_CLUSTERS_LIFE, *OF_THE_WATCH, *REPLAYED_IN_MEMORY))


def parse_fault(text: str) -> Fault:
    effect, when, step, occurrence = text.split(":")
    return Fault(Effect(effect), f"{when}:{Step(step).value}", int(occurrence))


class FailsAt(Steps):
    """Steps that inject faults when any thread reaches their points."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = {(fault.point, fault.occurrence): fault for fault in faults}
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def about_to(self, step: Step) -> None:
        self._pass(f"before:{step.value}")

    def reached(self, step: Step) -> None:
        self._pass(f"after:{step.value}")

    def _pass(self, point: str) -> None:
        with self._lock:
            self._seen[point] += 1
            fault = self._faults.get((point, self._seen[point]))
            if fault is None:
                return
        os.write(2, f"\n{INJECTED}{fault}\n".encode())
        _inject(fault)


def _inject(fault: Fault) -> None:
    match fault.effect:
        case Effect.CRASH:
            os._exit(KILLED)
        case Effect.FAIL:
            raise TemporaryError(f"the step fails here: {fault}")
        case Effect.FREEZE:
            os.kill(os.getpid(), signal.SIGSTOP)
        case Effect.EXPIRE:
            _expire_sessions()
        case never:
            assert_never(never)


def _expire_sessions() -> None:
    """Take over each session of this process by its id and password, and close it."""
    clients = [each for each in gc.get_objects() if isinstance(each, KazooClient) and each.client_id is not None]
    for client in clients:
        hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
        for tries_left in reversed(range(_USURPATIONS)):
            usurper = KazooClient(hosts=hosts, client_id=client.client_id)
            try:
                usurper.start()
            except KazooTimeoutError:
                # The process's own client keeps taking its session back.
                if not tries_left:
                    raise
            else:
                break
            finally:
                usurper.stop()
                usurper.close()


def run_nursery() -> None:
    """Read commands from standard input: fork a process and answer its process id, or answer an exit code.

    A line is ``{"environment": {}, "output": "path", "error": "path"}`` with either ``"faults": ["crash:..."]`` of a
    sidecar or ``"program": ["module", "argument"]``, or it is ``{"ended": <process id>}``. The nursery imports
    everything once, which saves most of a start. The processes end with the nursery, and the nursery with its standard
    input. An ended one keeps its process id until its code is read; `/proc` shows which ended.
    """
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    _keep_validators()
    gc.freeze()  # a fork that looks for garbage among all of this would copy it
    for line in sys.stdin:
        wish = json.loads(line)
        print(_exit_code(wish["ended"]) if "ended" in wish else _fork(wish), flush=True)  # noqa: T201 - the response


def _keep_validators() -> None:
    """Build what FastAPI validates every route's parameters and responses with, which depends on nothing but types.

    It is most of what is left of a start without its imports: 0.7 seconds of processor time.
    """
    kept: dict[str, Any] = {}

    def build(kind: object, **options: Any) -> Any:
        # What its text does not tell has an address there.
        key = repr((kind, options))
        if key not in kept:
            kept[key] = TypeAdapter(kind, **options)
        return kept[key]

    fastapi._compat.v2.TypeAdapter = build
    for feature in FEATURES:
        feature.routes()


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(wish: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _become_a_process(wish)
        _live(partial(_run_program, *wish["program"]) if "program" in wish else partial(_serve, wish))
    return pid


def _become_a_process(wish: dict[str, Any]) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output, error = (os.open(wish[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for name in ("output", "error"))
    for descriptor, target in ((nothing, 0), (output, 1), (error, 2)):
        os.dup2(descriptor, target)
    os.environ.clear()
    os.environ.update(wish["environment"])


def _live(program: Callable[[], int]) -> NoReturn:
    """End with the program's exit code, without the interpreter's clean-up, which takes longer than most commands."""
    code = 1
    try:
        code = program()
    except BaseException:  # noqa: BLE001 - the last words of a process
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(wish: dict[str, Any]) -> int:
    faults = [parse_fault(text) for text in wish["faults"]]
    return serve({}, wish["environment"], None, FailsAt(faults) if faults else None)


def _run_program(module: str, *arguments: str) -> int:
    """Run ``python -m module``, which ends by an exception if its exit code is not 0."""
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--nursery"]:
        run_nursery()
    else:
        sys.exit(serve({}, os.environ, None, FailsAt([parse_fault(text) for text in sys.argv[1:]])))

"""Faults of the fakes, which a test requests by name and which occur just before a call takes effect."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Call = Literal[
    "ensure", "publisher", "publish", "pending", "receive", "acknowledge", "postpone", "overdue", "dead_letters",
    "outcomes_since", "backlog", "views", "replicators", "owner_url", "load_topics", "delete_topic", "shadows_of",
    "all_shadows",
]  # fmt: skip


@dataclass(slots=True)
class _Hook:
    call: Call
    action: Callable[[], None]
    times: int


class Hooks:
    """Actions of a test just before calls take effect."""

    def __init__(self) -> None:
        self.journal: list[Call] = []
        self._hooks: list[_Hook] = []
        self._lock = threading.RLock()

    def before(self, call: Call, action: Callable[[], None], *, times: int = 1) -> None:
        """Run ``action`` before the next calls; ``times=-1`` means all of them."""
        self._hooks.append(_Hook(call, action, times))

    def fail_next(self, call: Call, error: Exception, *, times: int = 1) -> None:
        """Make the next calls raise ``error`` without any effect."""

        def raise_error() -> None:
            raise error

        self.before(call, raise_error, times=times)

    def forget(self) -> None:
        with self._lock:
            self._hooks.clear()

    def arrive(self, call: Call) -> None:
        """Record the call and run the hooks that wait for it."""
        with self._lock:
            self.journal.append(call)
            due = [hook for hook in self._hooks if hook.call == call]
            for hook in due:
                hook.times -= 1
            self._hooks = [hook for hook in self._hooks if hook.times != 0]
        for hook in due:
            hook.action()


class AnswerLostError(Exception):
    """Raised by a hook to lose the response of a change, with or without its effect."""

    def __init__(self, *, applied: bool) -> None:
        super().__init__("the answer was lost")
        self.applied = applied

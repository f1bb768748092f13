"""The steps of publishing a file: around each, a crash must neither lose a record nor store one twice."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class PublishStep(Enum):
    """Everything with an effect outside this process, and the reads it rests on, in order."""

    CHECKPOINT_READ = "checkpoint-read"
    PRODUCERS_OPENED = "producers-opened"
    TAIL_READ_BACK = "tail-read-back"
    FILE_COMPARED = "file-compared"
    RECORD_RESENT = "record-resent"
    RECORD_PUBLISHED = "record-published"
    FLUSHED = "flushed"
    CHECKPOINT_WRITTEN = "checkpoint-written"


class PublishSteps:
    """Hears of each step; production's does nothing."""

    def about_to(self, step: PublishStep) -> None:
        """Called right before the step's effect."""

    def reached(self, step: PublishStep) -> None:
        """Called right after it, unless it raised."""

    @contextmanager
    def taking(self, step: PublishStep) -> Iterator[None]:
        """Around the effect."""
        self.about_to(step)
        yield
        self.reached(step)

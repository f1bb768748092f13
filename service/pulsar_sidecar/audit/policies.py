"""What an audit's verdicts depend on beside its inputs."""

from dataclasses import dataclass

HOUR_MS = 3_600_000
EXCLUSIVE = "bookkeeperExclusiveToCluster"
"""In a summary's policy: whether the audit was told that this BookKeeper serves only its Pulsar cluster."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the verdicts depend on beside the inputs.

    Attributes:
        min_age_ms: younger ledgers are never condemned, by the store's clock.
        look_window_ms: so long ago, at least, must the first dump be that saw a ledger unreferenced.
        max_share: of the ledgers, and of their bytes, that may be condemned at most.
        max_shrink: by which share references and ledgers may have become fewer since the earlier audit.
        allow_young: whether ``min_age_ms`` may be below 24 hours.
        foreign_subtrees: paths in the metadata store below which nothing is Pulsar's.
        bookkeeper_exclusive: no other Pulsar cluster keeps ledgers in this BookKeeper, says the user; without it
            nothing may be deleted, since another cluster's references cannot be seen.
    """

    min_age_ms: int = 72 * HOUR_MS
    look_window_ms: int = 12 * HOUR_MS
    max_share: float = 0.1
    max_shrink: float = 0.2
    allow_young: bool = False
    foreign_subtrees: tuple[str, ...] = ()
    bookkeeper_exclusive: bool = False

    def document(self) -> dict[str, str | int | float | bool]:
        """As the summary shows it."""
        return {
            "minAgeHours": self.min_age_ms / HOUR_MS,
            "lookWindowHours": self.look_window_ms / HOUR_MS,
            "maxShare": self.max_share,
            "maxShrink": self.max_shrink,
            "allowYoung": self.allow_young,
            "foreignSubtrees": " ".join(sorted(self.foreign_subtrees)),
            EXCLUSIVE: self.bookkeeper_exclusive,
        }

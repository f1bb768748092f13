"""Who is greeted, and with which words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GreetingService:
    """Greets in the name of one cluster."""

    cluster_name: str

    def greeting(self, name: str) -> str:
        return f"Hello, {name}, from {self.cluster_name}."

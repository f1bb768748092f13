"""Brokers' settings as they hold now (``GET /admin/v2/brokers/configuration/runtime``), which are all texts."""

from collections.abc import Mapping
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.model.errors import TemporaryError

_PATH: Final = "/admin/v2/brokers/configuration/runtime"


class RuntimeConfiguration:
    """One broker's settings."""

    def __init__(self, document: object) -> None:
        if not isinstance(document, dict):
            raise TemporaryError("a broker did not answer with its runtime configuration; try again")
        self._settings: Mapping[str, object] = document

    @classmethod
    def of(cls, rest: AdminRest, web_service_url: str | None = None) -> "RuntimeConfiguration":
        """That broker's settings, or without an address any broker's."""
        return cls(rest.get(_PATH) if web_service_url is None else rest.get_exactly(web_service_url, _PATH))

    def text(self, name: str) -> str | None:
        """The setting; None when the broker does not know it."""
        value = self._settings.get(name)
        return None if value is None else str(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Whether the setting is on."""
        text = self.text(name)
        return default if text is None else text.lower() == "true"

    def number(self, name: str, default: int | None = None) -> int:
        """The setting as a number.

        Raises:
            TemporaryError: it is missing or not a number, and there is no default.
        """
        text = self.text(name) or ""
        if text.removeprefix("-").isdigit():
            return int(text)
        if default is None:
            raise TemporaryError(f"a broker's configuration lacks the number {name}; try again")
        return default

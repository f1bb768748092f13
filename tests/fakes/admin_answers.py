"""An admin REST API with a test's responses by path and a record of requests."""

from collections.abc import Callable, Mapping, Sequence

from pulsar_sidecar.model.errors import NotFoundError


class FakeAdminRest:
    """`AdminRest` with prepared responses; other paths are unknown to the broker."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.headers_by_path: dict[str, Mapping[str, str] | Exception] = {}
        self.changed: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.on_change: Callable[[str, str], None] = lambda method, path: None

    def get(self, path: str, params: Mapping[str, str] | None = None) -> object:
        self.asked.append(path)
        if path not in self.answers:
            raise NotFoundError(f"nothing at {path}")
        return self.answers[path]

    def get_exactly(self, web_service_url: str, path: str, params: Mapping[str, str] | None = None) -> object:
        return self.get(f"{web_service_url}{path}")

    def headers(self, path: str, params: Mapping[str, str] | None = None) -> Mapping[str, str]:
        self.asked.append(path)
        found = self.headers_by_path.get(path, NotFoundError("Message id not found"))
        if isinstance(found, Exception):
            raise found
        return found

    def reachable(self, urls: Sequence[str]) -> Sequence[str]:
        return urls

    def change(self, method: str, path: str, body: object = None, params: Mapping[str, str] | None = None) -> object:
        self.changed.append((method, path))
        self.on_change(method, path)
        return None

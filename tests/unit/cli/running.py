"""The command line as a person runs it, in this process: arguments in, exit code and both streams out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.bootstrap.commands import command_line
from pulsar_sidecar.cli.connecting import Programs
from pulsar_sidecar.demo.run import DemoReport
from pulsar_sidecar.features.audit import requests as audit
from pulsar_sidecar.features.audit.sources.manifests import Manifest
from pulsar_sidecar.features.deduplication.results import StuckReport
from pulsar_sidecar.features.doctor.findings import Finding
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest
from pulsar_sidecar.features.duplicates.requests import (
    DuplicatesOutcome,
    DuplicatesRequest,
    ExtractRequest,
    VerifyRequest,
)
from pulsar_sidecar.features.duplicates.verify import VerifiedTopic
from pulsar_sidecar.features.publishing.requests import FilePublishResult, PublishFileRequest
from pulsar_sidecar.local_cluster.spec import Role
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError, TemporaryError


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


_whole_command_line = cache(command_line)


class Terminal:
    """``programs`` are the real ones, if they are given, instead of those that only record calls."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, programs: Programs | None = None
    ) -> None:
        self._programs = programs
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.played: list[tuple[Path | None, int, Role]] = []
        self.struck: list[Path | None] = []
        self.served: list[tuple[Mapping[str, str | None], Path | None]] = []
        self.dumped: list[audit.DumpRequest] = []
        self.listed: list[audit.ListingRequest] = []
        self.listed_offloaded: list[audit.OffloadListingRequest] = []
        self.manifest: Manifest | None = None
        self.asked: list[Any] = []
        self.audited: audit.AuditResult | SidecarError | None = None
        self.show: audit.AuditView | SidecarError | None = None
        self.stuck: StuckReport | SidecarError | None = None
        self.explain: str | SidecarError | None = None
        self.applied: audit.AppliedPlan | SidecarError | None = None
        self.pushed: list[tuple[Path, str]] = []
        self.refusal: SidecarError | None = None
        self.report: Path | SidecarError | None = None
        self.prune: audit.PruneResult | SidecarError | None = None
        self.extracted: ExtractManifest | SidecarError | None = None
        self.published: FilePublishResult | SidecarError | None = None
        self.verified: Sequence[VerifiedTopic] | SidecarError | None = None
        self.concluded: DuplicatesOutcome | SidecarError | None = None
        self.examined: Sequence[Finding] | SidecarError = ()
        self.looked: list[tuple[Mapping[str, str | None], Path | None]] = []
        for name in ("PULSAR_CLIENT_CONF", "PULSAR_HOME", "PULSAR_SIDECAR_ADMIN_URL", "PULSAR_SIDECAR_AUTH_PARAMS"):
            monkeypatch.delenv(name, raising=False)

    def set(self, name: str, value: str) -> None:
        self._monkeypatch.setenv(name, value)

    def run(self, *arguments: str) -> Ran:
        self._capsys.readouterr()
        try:
            programs = self._programs or Programs(
                self._serve, self._run_demo, self._end_demo, self._noted(self.stuck),
                self._dump, self._list, self._list_offloaded, self._audit, self._noted(self.show),
                self._noted(self.explain), self._apply, self._noted(self.report), self._noted(self.prune),
                push_audit=self._push,
                verify_stored=self._verify,
                take_extract=self._extract,
                publish_file=self._publish,
                look_for_duplicates=self._look,
                run_doctor=self._examine,
            )  # fmt: skip
            code = _whole_command_line()(list(arguments), prog_name="pulsar-sidecar", obj=programs)
        except SystemExit as exit_:
            code = exit_.code
        streams = self._capsys.readouterr()
        return Ran(int(code or 0), streams.out, streams.err)

    def _examine(self, flags: Mapping[str, str | None], config: Path | None) -> Sequence[Finding]:
        self.looked.append((flags, config))
        if isinstance(self.examined, SidecarError):
            raise self.examined
        return self.examined

    def _run_demo(self, directory: Path | None, topics: int, store: Role, write: Callable[[str], None]) -> DemoReport:
        self.played.append((directory, topics, store))
        raise TemporaryError("no cluster was started for this test")

    def _end_demo(self, directory: Path | None, write: Callable[[str], None]) -> None:
        self.struck.append(directory)

    def _dump(self, request: audit.DumpRequest, write: Callable[[str], None]) -> Manifest:
        self.dumped.append(request)
        return self._made(write)

    def _list(self, request: audit.ListingRequest, write: Callable[[str], None]) -> Manifest:
        self.listed.append(request)
        return self._made(write)

    def _list_offloaded(self, request: audit.OffloadListingRequest, write: Callable[[str], None]) -> Manifest:
        self.listed_offloaded.append(request)
        return self._made(write)

    def _made(self, write: Callable[[str], None]) -> Manifest:
        write("working")
        if self.manifest is None:
            raise TemporaryError("nothing was read for this test")
        return self.manifest

    def _audit(self, request: audit.AuditRequest, write: Callable[[str], None]) -> audit.AuditResult:
        write("working")
        audited: audit.AuditResult = self._noted(self.audited)(request)
        return audited

    def _publish(
        self, request: PublishFileRequest, write: Callable[[str], None], report: Callable[[str, int, int], None]
    ) -> FilePublishResult:
        report("reading, bytes", 10, 10)
        report("publishing, bytes", 5, 10)
        published: FilePublishResult = self._noted(self.published)(request)
        return published

    def _verify(self, request: VerifyRequest, write: Callable[[str], None]) -> Sequence[VerifiedTopic]:
        verified: Sequence[VerifiedTopic] = self._noted(self.verified)(request)
        return verified

    def _extract(self, request: ExtractRequest, write: Callable[[str], None]) -> ExtractManifest:
        manifest: ExtractManifest = self._noted(self.extracted)(request)
        return manifest

    def _look(self, request: DuplicatesRequest, write: Callable[[str], None]) -> DuplicatesOutcome:
        concluded: DuplicatesOutcome = self._noted(self.concluded)(request)
        return concluded

    def _noted(self, answer: Any) -> Callable[..., Any]:
        def asked(*request: Any) -> Any:
            self.asked.append(request if len(request) > 1 else request[0])
            if answer is None or isinstance(answer, SidecarError):
                raise answer or InvalidInputError("nothing is answered in this test")
            return answer

        return asked

    def _apply(self, request: audit.ApplyRequest, report: Callable[[int, int], None]) -> audit.AppliedPlan:
        report(0, 2)
        report(2, 2)
        applied: audit.AppliedPlan = self._noted(self.applied)(request)
        return applied

    def _push(self, directory: Path, url: str) -> None:
        self.pushed.append((directory, url))
        if self.refusal is not None:
            raise self.refusal

    def _serve(self, flags: Mapping[str, str | None], config: Path | None) -> int:
        self.served.append((flags, config))
        return 0

"""``pulsar-sidecar topics delete-shadow``: asks the service for one stage after the other and shows each."""

from typing import Annotated, Any

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.connecting import GlobalOptions, Output
from pulsar_sidecar.cli.exits import EXIT_CODES, ExitCode, ServiceRefusedError
from pulsar_sidecar.cli.groups.topics import app, topic_path
from pulsar_sidecar.ledger_deletion.service import ShadowDeletionStage
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import SidecarError, UnreachableError
from pulsar_sidecar.model.names import TopicName, parse_topic_name

_BETWEEN_CALLS_SECONDS = 0.3
_TEMPORARY = 503
_NEXT = {
    ShadowDeletionStage.PROTECTING: "next: infinite retention, so that brokers trim none of the source's ledgers",
    ShadowDeletionStage.DISCONNECTING: "next: out of the source's shadow topics, and unload the source",
    ShadowDeletionStage.DETACHING: "next: take the source's ledgers off the shadow's list",
    ShadowDeletionStage.REMOVING: "next: the broker deletes the shadow",
    ShadowDeletionStage.VERIFYING: "next: look for every ledger of the source",
}


@app.command("delete-shadow", epilog=EXIT_CODES)
def delete_shadow(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The shadow topic; a partitioned one by its own name.")],
    wait_seconds: Annotated[
        float, typer.Option("--wait-seconds", min=0, help="Maximum time to wait; the same command continues later.")
    ] = 120.0,
    form: Output = None,
) -> None:
    """Delete a shadow topic, partitioned or not, without touching its source's ledgers.

    Stock brokers delete the source's ledgers together with a shadow topic. Close the shadow's clients first. The
    command can be stopped at any time: the same command goes on where it stopped. At the end every ledger of the source
    is looked for; exit code 1 if one is missing that was there before, or if a source does not exist.

    Example: pulsar-sidecar topics delete-shadow persistent://public/default/orders-shadow
    """
    options: GlobalOptions = ctx.obj
    answer = _Deletion(options, parse_topic_name(topic), SystemClock()).run(wait_seconds)
    if answer is None:
        output.info(f"{output.printable(topic)} is not deleted yet; run the same command again to go on")
        raise typer.Exit(ExitCode.NOT_ALL)
    output.document(answer, options.format(form))
    if answer["missingLedgers"]:
        output.info(
            f"{len(answer['missingLedgers'])} ledgers of the source are missing that were there before; "
            "stop the source's clients and look for them on the bookies before these collect garbage"
        )
    for source in answer["missingSources"]:
        output.info(output.printable(f"{source} does not exist, so no ledger of it could be looked for"))
    if answer["missingLedgers"] or answer["missingSources"]:
        raise typer.Exit(ExitCode.FAILED)


class _Deletion:
    """The calls of one command."""

    def __init__(self, options: GlobalOptions, topic: TopicName, clock: Clock) -> None:
        self._client = options.client()
        self._path = f"{topic_path(topic)}/deleteShadow"
        self._clock = clock
        self._reported = ""

    def run(self, wait_seconds: float) -> dict[str, Any] | None:
        """The last answer; None if it is not done when the time is over."""
        give_up = self._clock.monotonic_seconds() + wait_seconds
        answer = self._call()
        while answer is None or answer["stage"] != ShadowDeletionStage.DONE.value:
            if self._clock.monotonic_seconds() >= give_up:
                return None
            self._clock.wait_seconds(_BETWEEN_CALLS_SECONDS)
            answer = self._call()
        return answer

    def _call(self) -> dict[str, Any] | None:
        try:
            answer: Any = self._client.call("POST", self._path)
        except (ServiceRefusedError, UnreachableError) as error:
            self._report_or_raise(error)
            return None
        stage = ShadowDeletionStage(answer["stage"])
        if stage is not ShadowDeletionStage.DONE:
            waits = answer["waitsFor"]
            self._report(_NEXT[stage] if waits is None else f"waiting: {waits}")
        return dict(answer)

    def _report_or_raise(self, error: SidecarError) -> None:
        """What may work later is waited for, once the deletion has begun."""
        temporary = isinstance(error, UnreachableError) or getattr(error, "status", None) == _TEMPORARY
        if not self._reported or not temporary:
            raise error
        self._report(f"waiting: {error}")

    def _report(self, text: str) -> None:
        if text != self._reported:
            self._reported = text
            output.info(output.printable(text))

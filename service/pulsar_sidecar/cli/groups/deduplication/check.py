"""``pulsar-sidecar deduplication check``: whether brokers deduplicate in a namespace."""

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from pulsar_sidecar.cli.command_groups import ExitCode
from pulsar_sidecar.cli.connecting import Context, NamespaceArgument, Output, namespace_path, show_answer
from pulsar_sidecar.cli.groups.deduplication.show import app

_STORED_TWICE = 2
_EXIT_CODES = (
    "Exit codes: 0 the duplicate was refused; 2 the message was stored twice; 1 the service answered with an error, or "
    "wrong usage; 3 no answer came; 4 the broker did not decide, or the check's topic is left behind."
)


@app.command(epilog=_EXIT_CODES, short_help="Ask brokers, on a new topic, by publishing twice.")
def check(ctx: Context, namespace: NamespaceArgument, form: Output = None) -> None:
    """Publish twice under one sequence id to a new topic of a namespace, and show what the broker did.

    The topic has a new name (pulsar-sidecar-deduplication-check-...), and the service deletes it afterwards. No
    existing topic is touched.

    Example: pulsar-sidecar deduplication check public/default
    """
    answer = show_answer(ctx, form, "POST", f"{namespace_path(namespace)}/deduplication/check", lines=_lines)
    if answer["leftBehind"] or answer["outcome"] == "unknown":
        raise typer.Exit(ExitCode.NOT_ALL)
    if answer["outcome"] == "stored twice":
        raise typer.Exit(_STORED_TWICE)


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    policy = answer["policy"]
    yield f"{answer['namespace']}: {answer['outcome']}"
    yield f"  {answer['reason']}"
    switched = "on" if policy["applied"] else "off"
    yield f"  policy   deduplication is {switched}, decided by the {policy['decidedBy']}"
    yield f"  status   {answer['status'] or 'unknown'}"
    if not answer["asConfigured"]:
        yield "  the broker did not follow the policy; search its log for the topic, then unload the namespace"
    elif not policy["applied"]:
        yield f"  switch it on with: pulsar-sidecar namespaces set-deduplication {answer['namespace']} --enable"
    if answer["leftBehind"]:
        yield f"  {answer['leftBehind']}"

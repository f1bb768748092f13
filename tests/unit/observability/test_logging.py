import io
import json
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.observability.logging import configure_logging
from pulsar_sidecar.observability.redaction import redacted_text

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.dGhlLXNpZ25hdHVyZS1vZi1pdA"


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """Standard error, to which the process logs all levels as JSON, or as a test's parameter has it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    written = io.StringIO()
    with redirect_stderr(written):
        configure_logging(*getattr(request, "param", ("DEBUG", "auto")))
    yield written
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def line(stream: io.StringIO) -> dict[str, object]:
    document = json.loads(stream.getvalue())
    assert isinstance(document, dict)
    return document


def test_off_a_terminal_a_line_is_one_json_object(stream: io.StringIO) -> None:
    structlog.get_logger("room").info("ledger deleted", ledger_id=7, topic="persistent://t/n/ä")
    written = line(stream)
    assert written["event"] == "ledger deleted"
    assert written["ledger_id"] == 7
    assert written["topic"] == "persistent://t/n/ä"
    assert written["level"] == "info"
    assert written["logger"] == "room"
    assert str(written["timestamp"]).endswith("Z")


def test_lines_of_libraries_take_the_same_way(stream: io.StringIO) -> None:
    logging.getLogger("kazoo.client").warning("connection %s dropped, token=%s", "a", "abc123")
    written = line(stream)
    assert written["event"] == "connection a dropped, token=[redacted]"
    assert written["level"] == "warning"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("auth_params", "token:abc"),
        ("authParams", "x"),
        ("token", "x"),
        ("password", b"x"),
        ("headers", {"Authorization": "x", "Accept": "a"}),
        ("options", [{"tokenSecretKey": "x"}]),
        ("url", "http://user:x@host/path"),
        ("text", f"got {JWT} from there"),
        ("text", "Authorization: Bearer x"),
        ("text", 'authParams={"privateKey":"x"}'),
        ("text", "password=x&user=me"),
        ("key", "data:;base64,eA=="),
    ],
)
def test_a_credential_is_hidden_wherever_it_stands(stream: io.StringIO, field: str, value: object) -> None:
    structlog.get_logger().info("calling", **{field: value})
    shown = line(stream)[field]
    assert "[redacted]" in str(shown)
    assert "dGhlLXNpZ25hdHVyZS1vZi1pdA" not in str(shown)
    assert ":x@" not in str(shown)
    assert not str(shown).endswith("x")


def test_a_credential_in_a_traceback_is_hidden(stream: io.StringIO) -> None:
    def refuse() -> None:
        raise RuntimeError(f"refused Bearer {JWT}")

    try:
        refuse()
    except RuntimeError:
        structlog.get_logger().exception("call failed")
    assert "RuntimeError: refused Bearer [redacted]" in str(line(stream)["exception"])
    assert JWT not in stream.getvalue()


def test_text_without_credentials_is_unchanged(stream: io.StringIO) -> None:
    structlog.get_logger().info("the record is malformed", reason="ledgerId: must be an integer", tries=3, left=None)
    written = line(stream)
    assert written["reason"] == "ledgerId: must be an integer"
    assert written["tries"] == 3
    assert written["left"] is None


@pytest.mark.parametrize("stream", [("WARNING", "text")], indirect=True)
def test_text_format_applies_level_and_redaction(stream: io.StringIO) -> None:
    structlog.get_logger().info("hidden by the level")
    structlog.get_logger().warning("seen", token="abc")
    assert "seen" in stream.getvalue()
    assert "abc" not in stream.getvalue()
    assert "hidden" not in stream.getvalue()


@given(st.from_regex(r"[A-Za-z0-9_-]{8,40}", fullmatch=True), st.text(max_size=30))
def test_token_is_redacted_next_to_any_text(secret: str, around: str) -> None:
    for template in ("{around} token:{secret}", "Bearer {secret} {around}", '{around} "password": "{secret}"'):
        shown = redacted_text(template.format(around=around, secret=secret))
        assert shown.count(secret) <= around.count(secret) + "Bearer token password redacted base64".count(secret)


LONG = 100_000


@pytest.mark.parametrize(
    "piece",
    ["token", "token-", "token ", "token=", "token:", "token\" ", "passwd", "eyJaaaa-", "eyJaaaa.", "eyJ-", "bearer",
     "bearer ", "data:", "data:;base64", "://", "://a:", "://a:b@", "a:b", " ", "a", "-", "secret_", "token[redacted]"],
)  # fmt: skip
def test_long_text_is_redacted_in_linear_time(piece: str) -> None:
    clock = SystemClock()
    begin = clock.monotonic_seconds()
    redacted_text((piece * LONG)[:LONG])
    # Hundredths of a second where the time grows with the length; a minute and more where it grows with its square.
    assert clock.monotonic_seconds() - begin < 2


@given(st.lists(st.sampled_from(["token", "eyJ", "-", ".", ":", "=", " ", "@", "//", "bearer", "a", '"'])))
def test_secret_stays_redacted_after_any_prefix(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert "s3cr3t" not in redacted_text(f"{text} token=s3cr3t")
    assert "s3cr3t" not in redacted_text(f"{text} Bearer s3cr3t")
    assert "s3cr3t" not in redacted_text(f"{text} http://user:s3cr3t@host")
    assert "s3cr3t" not in redacted_text(f"{text} eyJhbGci.s3cr3t.s3cr3t")


def test_long_values_are_truncated_in_every_field(stream: io.StringIO) -> None:
    topic = "persistent://public/default/" + "t" * LONG + "-end"
    structlog.get_logger("room").info(
        topic, topic=topic, headers={topic: topic}, ledgers=list(range(LONG)), value=[topic]
    )
    assert len(stream.getvalue()) < 20_000
    written = line(stream)
    assert str(written["topic"]).startswith("persistent://public/default/ttt")
    assert str(written["topic"]).endswith("ttt-end")
    assert "characters left out" in str(written["topic"])
    assert str(written["ledgers"]).endswith("98, 99, '[99900 more]']")


def test_a_long_traceback_keeps_its_end(stream: io.StringIO) -> None:
    error = RuntimeError("x" * LONG + " is what happened")
    structlog.get_logger().error("call failed", exc_info=error)
    assert len(stream.getvalue()) < 30_000
    assert str(line(stream)["exception"]).endswith("is what happened")

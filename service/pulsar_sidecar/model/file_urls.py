"""``file:`` URLs, as Pulsar's settings name files with secrets."""

from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from pulsar_sidecar.model.errors import InvalidInputError


def path_of(url: str) -> Path:
    """Return the path of ``file:///path`` or ``file:/path``, where %20 is a space."""
    return Path(unquote_to_bytes(urlsplit(url).path).decode(errors="surrogateescape"))


def content_of(text: str, setting: str) -> str:
    """Return the value, or the stripped content of the file that it names by ``file:``.

    Raises:
        InvalidInputError: the file cannot be read; the message names it and the setting.
    """
    if not text.startswith("file:"):
        return text
    path = path_of(text)
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"the file {path} of {setting} cannot be read ({type(error).__name__}); write file:///path"
        ) from error

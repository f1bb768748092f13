"""TLS contexts with certificates from files, for every connection over TLS.

Invariant: a file that cannot be used is an `InvalidInputError` that names it, before anything is connected.
"""

import ssl
from pathlib import Path

from pulsar_sidecar.model.errors import InvalidInputError


def trusting(trusted: Path | None) -> ssl.SSLContext:
    """Return a client's context that trusts the CA certificates in this PEM file, or the system's.

    Raises:
        InvalidInputError: the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=None if trusted is None else str(trusted))
    except OSError as error:
        raise _unusable(trusted, error) from error


def load_trusted(context: ssl.SSLContext, trusted: Path) -> None:
    """Load the CA certificates in this PEM file into the context as trusted.

    Raises:
        InvalidInputError: the file cannot be used.
    """
    try:
        context.load_verify_locations(trusted)
    except OSError as error:
        raise _unusable(trusted, error) from error


def load_certificate(context: ssl.SSLContext, file: Path, key_file: Path) -> None:
    """Load this certificate chain, with its key, into the context.

    Raises:
        InvalidInputError: the files cannot be used, or do not belong together.
    """
    try:
        context.load_cert_chain(file, key_file, password="")  # never prompt at the terminal
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"the certificate {file} with the key {key_file} cannot be used ({_reason(error)}); name PEM files that "
            "belong together, the key without a password"
        ) from error


def _unusable(trusted: Path | None, error: OSError) -> InvalidInputError:
    return InvalidInputError(
        f"the trusted certificates in {trusted} cannot be used ({_reason(error)}); name a PEM file of certificates"
    )


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or type(error).__name__
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__

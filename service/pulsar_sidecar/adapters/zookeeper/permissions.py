"""A credential's rights by the access control lists of ZooKeeper's nodes."""

from collections.abc import Collection
from typing import Final

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import Permissions, make_digest_acl_credential

from pulsar_sidecar.adapters.metadata_access import StoreCredential
from pulsar_sidecar.adapters.zookeeper.session import KazooSession

_DIGEST: Final = "digest"


def may_delete_below(session: KazooSession, path: str, credential: StoreCredential | None) -> bool:
    """Return True if the credential may delete children of the node, or if only the server knows.

    Only the server knows for a missing node, and for a list with an identity that is not a digest (``sasl``, ``x509``).

    Raises:
        TemporaryError: the list cannot be read.
    """
    try:
        found, _ = session.reading(
            f"read the access control list of {path}",
            lambda client, deadline: deadline.answer(client.get_acls_async(path)),
            (NoNodeError, NoAuthError),
        )
    except NoNodeError:
        return True
    except NoAuthError:  # this credential may not even read
        return False
    able = [acl.id for acl in found if acl.perms & Permissions.DELETE]
    own = _digests(credential)
    return any(identity.scheme != _DIGEST or identity.id in own for identity in able)


def _digests(credential: StoreCredential | None) -> Collection[str]:
    """Return the credential's names in lists: its digest, which ZooKeeper shows only with rights to change them."""
    if credential is None or credential.scheme != _DIGEST:
        return ()
    user, _, password = credential.secret.partition(":")
    return make_digest_acl_credential(user, password), f"{user}:x"

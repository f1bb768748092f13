"""What access control lists of ZooKeeper's nodes let a credential do."""

from collections.abc import Collection
from typing import Final

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import Permissions, make_digest_acl_credential

from pulsar_sidecar.adapters.metadata.addressing import ZooKeeperCredential
from pulsar_sidecar.adapters.metadata.session import KazooSession

_DIGEST: Final = "digest"


def may_delete_below(session: KazooSession, path: str, credential: ZooKeeperCredential | None) -> bool:
    """Whether the credential may delete children of the node; True as well where only the server knows.

    So it is for a node that does not exist, and a list with an identity that is not a digest (``sasl``, ``x509``).

    Raises:
        TemporaryError: the list cannot be read.
    """
    try:
        found, _ = session.reading(
            f"read the access control list of {path}",
            lambda client, patience: patience.answer(client.get_acls_async(path)),
            (NoNodeError, NoAuthError),
        )
    except NoNodeError:
        return True
    except NoAuthError:  # not even this credential's reading is allowed
        return False
    able = [acl.id for acl in found if acl.perms & Permissions.DELETE]
    own = _digests(credential)
    return any(identity.scheme != _DIGEST or identity.id in own for identity in able)


def _digests(credential: ZooKeeperCredential | None) -> Collection[str]:
    """How lists name the credential: by its digest, which ZooKeeper shows only to those who may change the list."""
    if credential is None or credential.scheme != _DIGEST:
        return ()
    user, _, password = credential.secret.partition(":")
    return make_digest_acl_credential(user, password), f"{user}:x"

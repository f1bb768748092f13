class Id:
    scheme: str
    id: str

class ACL:
    perms: int
    id: Id

class Permissions:
    DELETE: int

def make_acl(scheme: str, credential: str, *, all: bool = ...) -> ACL: ...
def make_digest_acl(username: str, password: str, *, all: bool = ...) -> ACL: ...
def make_digest_acl_credential(username: str, password: str) -> str: ...

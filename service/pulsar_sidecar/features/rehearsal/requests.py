"""Names of brokers as operators give them."""


def broker_address(text: str) -> str:
    """Return the ``host:port`` of a broker's web service, which may be given as a URL."""
    return (text.partition("://")[2] or text).rstrip("/")

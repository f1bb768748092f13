"""The dashboard: a door for browsers, which is itself a client of the REST door in the same process.

Invariant: a page shows and does only what the REST door's routes answer and do for the caller's own credential.
"""

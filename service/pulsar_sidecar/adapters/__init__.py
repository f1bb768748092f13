"""Clients of the outside world: Pulsar, BookKeeper, metadata stores and object stores."""

"""Metadata store drivers; nothing else imports ``kazoo``."""

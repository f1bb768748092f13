"""RocksDB, in which ``pulsar standalone`` keeps its metadata by default; nothing else imports ``rocksdict``."""

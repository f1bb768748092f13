"""Generated protobuf modules: never edited, written by ``proto/generate.py`` and compared by the check."""

"""What an index holds and what becomes of it: shown, counted, explained and tried; nothing is changed."""

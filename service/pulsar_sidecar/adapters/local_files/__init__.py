"""Files of this machine that a command reads or keeps for its next run."""

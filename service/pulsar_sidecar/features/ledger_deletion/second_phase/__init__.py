"""Second phase of PIP-186: evaluation, deletion and retries of pending records."""

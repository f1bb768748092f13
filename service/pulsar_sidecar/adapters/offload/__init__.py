"""Object stores that hold offloaded ledgers."""

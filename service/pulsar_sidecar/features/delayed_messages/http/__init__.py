"""The routes of delayed delivery."""

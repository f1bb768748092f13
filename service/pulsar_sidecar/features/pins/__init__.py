"""Pins: cursors, policies and copies that keep bytes on bookies, and the bytes that each remedy frees."""

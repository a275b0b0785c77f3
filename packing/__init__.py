"""Indexed token shards and the exactly resumable loader. Needs NumPy and the standard library only."""

"""Evaluation-set index, matching and the contamination report."""

"""Distributed byte-level BPE training, encoding and the tokenizer report."""

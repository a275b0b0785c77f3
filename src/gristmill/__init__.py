"""gristmill: raw text in, exactly-resumable training batches out, every dropped byte accounted for."""

__version__ = "0.1.0"

"""Reading raw input into the document table; bad input becomes quarantine rows with their place and reason."""

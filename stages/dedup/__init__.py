"""What the deduplication stages share: the keep order, checkpoints, the streaming resolver, the index."""

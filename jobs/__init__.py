"""One spark-submit entry point a stage, and the command line."""

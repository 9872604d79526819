"""Scripts that measure the tool itself. Run them from the repository root: ``python -m benchmarks.NAME``."""

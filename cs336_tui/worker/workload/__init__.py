"""The thing being timed: the reference Transformer, its batch, and a step of each pass."""

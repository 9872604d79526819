"""Several processes that run one cell together."""

"""Benchmark Transformer language-model training steps, live in a terminal."""

__version__ = "0.1.0"

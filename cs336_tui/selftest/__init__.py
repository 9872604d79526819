"""The tool held against a bare script: programs that run the same cell in turns, and what their step times come to."""

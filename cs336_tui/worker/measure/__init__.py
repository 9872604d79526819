"""Measuring one cell, inside a child process: build, warm up, time steps, report events. Import its modules late."""

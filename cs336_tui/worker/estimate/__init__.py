"""Predicting what a cell will need, without running it."""

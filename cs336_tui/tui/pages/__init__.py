"""What the Compare tab shows, made from results: pure functions from numbers to lines."""

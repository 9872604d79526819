"""A user's own model, attention, norm, loss and optimizer, imported by name in a child process."""

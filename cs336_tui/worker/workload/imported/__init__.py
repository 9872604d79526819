"""A user's own model, attention, loss and optimizer, imported by name in a child process."""

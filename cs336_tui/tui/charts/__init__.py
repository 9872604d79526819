"""Pictures made of characters: pure functions from numbers and a width to `Line`s."""

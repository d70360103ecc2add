"""The order in which tasks begin."""

"""Objects written in bulk: stored by many processes, and given their names at once."""

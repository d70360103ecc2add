"""Users of a store: their rows, who knows them, where what they do is noted."""

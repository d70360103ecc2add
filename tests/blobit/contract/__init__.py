"""One suite of what buckets promise, over every way to reach their names."""

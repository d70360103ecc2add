"""What only the broker that leads has: in memory, for one term."""

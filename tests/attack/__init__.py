"""What a user without rights can do to a node, and what it costs the node."""

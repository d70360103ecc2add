"""What somebody without rights may do to a node, and what it costs the node."""

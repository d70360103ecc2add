"""Roll-outs: never more than m of n nodes that are not proven healthy."""

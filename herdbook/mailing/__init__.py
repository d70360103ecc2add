"""The demonstration on a cluster: the life of a mailing platform, with its accidents."""

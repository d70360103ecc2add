"""One node of a cluster, or the one that serves a folder: what it is told, its roles, who watches
over them."""

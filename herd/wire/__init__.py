"""Sessions from another process or machine: the wire, its server and its clients."""

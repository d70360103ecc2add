"""Other languages, processes and machines: the broker over gRPC."""

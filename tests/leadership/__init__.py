"""Leadership: its specification as a model, and the invariants that every implementation keeps."""

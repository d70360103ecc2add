"""The pages for operators, run on three real nodes, with the fault that each is about."""

"""Generated from `proto/`; `tests/herd/wire/test_grpc_generated.py` says how."""

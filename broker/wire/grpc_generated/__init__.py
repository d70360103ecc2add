"""Generated from `proto/`; `tests/broker/wire/test_grpc_generated.py` says how."""

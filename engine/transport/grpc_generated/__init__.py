"""Generated from `proto/`; `tests/engine/transport/test_grpc_generated.py` says how."""

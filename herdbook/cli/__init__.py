"""The command `herdbook`: one module a command, each loaded when it is called."""

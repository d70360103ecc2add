"""SQL over a tablespace: statements by key in Python, everything else in DuckDB."""

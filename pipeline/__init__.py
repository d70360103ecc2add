"""Jobs that run on Spark: bulk load, export, scrub, reports."""

"""A program of its own that copies a table's changes to Parquet, to be killed and started again.

    python -m tests.spark.streams.copying STORE TABLE FOLDER [finish]

With `finish` it ends when all that was committed before it began is copied.
"""

import sys

import herdbook.spark

_SETTINGS = {
    "spark.ui.enabled": "false",
    # A program that lives for seconds is done before the better compiler pays.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def main(store: str, table: str, folder: str, finish: bool) -> None:
    """Copy until killed, or until all is copied."""
    spark = herdbook.spark.session(store, master="local[1]", settings=_SETTINGS)
    changes = (
        spark.readStream.format("herd-changes")
        .option("table", table)
        .option("consumer", f"copy of {table}")
        .option("maxRows", "400")
        .load()
    )
    writer = (
        changes.writeStream.format("parquet")
        .option("path", f"{folder}/copy")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    query = (writer.trigger(availableNow=True) if finish else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:] == ["finish"])

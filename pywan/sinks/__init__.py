"""Ready-made listeners of asynchronous event queues: a table of a database, Parquet files, topics of Kafka."""

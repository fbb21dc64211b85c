"""The request log: one row for each request and refusal, from Redis to Parquet files in S3, and queries over them."""

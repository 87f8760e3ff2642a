"""The record: versioned JSON, Parquet ledgers, and two records side by side."""

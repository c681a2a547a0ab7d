"""Logged decisions in tables: CSV and Parquet files and data frames as datasets."""

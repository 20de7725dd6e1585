"""A table: its items, who may insert and sample, and what a sample is."""

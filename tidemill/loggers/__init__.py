"""Loggers of others that `tidemill log` knows by name, and the interface for more."""

"""Environments of published suites, and networks for them."""

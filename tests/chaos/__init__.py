"""Faults of real processes, under load, with a history that is checked afterwards: `make chaos` runs them at length."""

"""`tidemill sweep`: trials of a run with varied settings, side by side, and their comparison."""

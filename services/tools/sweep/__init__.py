"""`tidemill sweep`: trials of a run with other settings, beside one another, and what they say."""

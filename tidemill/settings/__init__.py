"""Building blocks of settings: checks of values, documents put over defaults, hints at names, and user code."""

"""The log on disk: what is written, how it is read back, and how it is kept small."""

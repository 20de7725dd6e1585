"""The log on disk: what is written, how it is read back and kept small, and which blocks memory does not have."""

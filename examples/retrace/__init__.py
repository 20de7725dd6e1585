"""Retrace: an algorithm with a column of its own, the behaviour policy's log-probability of each action."""

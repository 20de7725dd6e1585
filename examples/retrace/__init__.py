"""Retrace: an algorithm with an extra column, the behaviour policy's log-probability of each action."""

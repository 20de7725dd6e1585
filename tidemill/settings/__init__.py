"""What every dataclass of settings needs: checks of values, documents laid over it, names and code of a user."""

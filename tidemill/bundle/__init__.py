"""A trained policy as one folder that can be passed on, and the way from it to actions."""

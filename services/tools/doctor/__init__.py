"""Checks of `tidemill doctor`: installed software, and limits of the machine."""

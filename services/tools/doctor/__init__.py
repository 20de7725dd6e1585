"""The checks of `tidemill doctor`: what is installed, and what the machine allows."""

"""Folder with `sitecustomize`, on PYTHONPATH where GPUs are pretended."""

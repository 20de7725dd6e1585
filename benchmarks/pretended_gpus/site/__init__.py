"""On PYTHONPATH where GPUs are pretended: `sitecustomize` is in it."""

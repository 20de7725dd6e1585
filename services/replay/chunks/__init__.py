"""The chunks of streams: where memory keeps them, and who needs them."""

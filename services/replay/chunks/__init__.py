"""The chunks of streams: where they are kept, in memory and in the log's files, and who needs them."""

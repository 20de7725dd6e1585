"""State of a replay server: chunks, tables, streams, memory and changes. Nothing here waits."""

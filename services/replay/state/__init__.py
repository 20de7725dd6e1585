"""All that a replay server holds, without waits: chunks and tables with the streams, the memory and the changes."""

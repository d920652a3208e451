"""The only I/O: model calls, tool calls, and what they must know of the thread."""

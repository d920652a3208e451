"""The only I/O: model calls, tool calls, and what they need to know of the thread."""

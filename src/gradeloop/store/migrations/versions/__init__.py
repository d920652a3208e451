"""One module for each version of the store's tables: how the version before it becomes it, and it the version before."""

"""The Temporal server and the processes around it: connection, embedded server, workers of this machine."""

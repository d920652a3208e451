"""Many cases at once: suites, the cases they come to, what is kept of them, and how they are told."""

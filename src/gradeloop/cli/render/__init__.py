"""The texts and tables that the command line prints to a terminal."""

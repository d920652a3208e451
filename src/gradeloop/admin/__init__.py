"""Commands for an operator of this machine."""

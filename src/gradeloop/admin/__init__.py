"""What an operator asks of this machine."""

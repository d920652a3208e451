"""One run of everything that an operator does, on real servers: `python -m lab.operate`."""

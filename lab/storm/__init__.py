"""A storm over many threads with everything at once; each result is compared with what it has to be: `python -m lab.storm`."""

"""What the tests and the lab both stand on: processes, servers of models, requests over OTLP, a browser; it imports neither of them."""

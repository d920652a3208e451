"""The wire contract: pydantic models of everything that crosses a boundary, and the typed doors to the workflows."""

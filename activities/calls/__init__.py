"""The paid call: who may call when, when a failed call is made again and by which model, and what has been paid for."""

"""The live page of `gradeloop dev`: threads and batches as they change, and people's words to them, on 127.0.0.1 alone."""

"""The live page of `gradeloop dev`: threads and batches as they change, and decisions of people, on 127.0.0.1 alone."""

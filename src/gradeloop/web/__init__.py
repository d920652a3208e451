"""The live page of `gradeloop dev`: threads and batches as they change, and decisions of people, only on 127.0.0.1."""

"""Side by side with what a user would write instead."""

"""Statistics: intervals of rates and of their differences."""

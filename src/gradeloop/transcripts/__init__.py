"""Files of finished runs, in the formats that others write."""

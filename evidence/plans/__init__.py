"""Studies: methods, the search of their settings, their runs and the records of these."""

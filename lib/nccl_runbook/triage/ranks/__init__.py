"""What the table of ranks shows, one file for each kind of difference."""

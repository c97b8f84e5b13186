"""What is wrong with a job that hangs now, one file for each kind of fault."""

"""Flight-recorder dumps, read without executing anything in them."""

"""What a hung job left, before it is judged: files by rank, operations by group."""

"""What runs inside a rank: standard library and torch (>= 2.2), started by file path, importing
nothing of ours. Python >= 3.9."""

"""Ask the machine one subject each; every answer is a value or a Gap. Standard library only, Python >= 3.9."""

"""AReaL's allocation strings: grammars by tag."""

"""The catalogue of messages that jobs print, and what finds them in a log."""

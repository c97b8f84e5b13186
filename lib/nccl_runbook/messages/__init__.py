"""The catalogue of messages, its matcher, and what logs say of each rank."""

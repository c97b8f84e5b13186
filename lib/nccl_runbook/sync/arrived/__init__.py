"""Did the engine really get the trainer's weights? Digests of both, compared tensor by tensor."""

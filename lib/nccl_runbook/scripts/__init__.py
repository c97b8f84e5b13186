"""Launch scripts as text: commands, variables, and the nodes and GPUs that are asked for."""

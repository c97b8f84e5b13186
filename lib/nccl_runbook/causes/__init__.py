"""Causes, remedies, variables and launchers: data with their loaders."""

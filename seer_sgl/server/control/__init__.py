"""The control plane: one call to the server becomes one call to every engine."""

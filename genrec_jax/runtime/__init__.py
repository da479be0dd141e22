"""What runs a step: one device or a mesh, with the state between two steps."""

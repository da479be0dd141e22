"""What runs a step, on one device or on a mesh, and what goes on around it."""

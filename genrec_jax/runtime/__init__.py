"""Runs steps on one device or a mesh, and holds the state between them."""

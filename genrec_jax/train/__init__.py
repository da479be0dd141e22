"""The training loop and what it tells about itself."""

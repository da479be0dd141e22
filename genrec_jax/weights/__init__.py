"""Weights in and out: safetensors files, and the names of published models."""

"""HSTU's pointwise (SiLU) attention and its softmax twin, causal, jagged."""

"""DNAS (arXiv 2110.14812): a search by gradient for a ranking model's widths,
depth and tables; see docs/dnas.md.
"""

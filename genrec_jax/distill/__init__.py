"""What a large teacher hands to small students: its scores, joined to labels.

No part of it trains or serves; services and trainings are built of these parts.
"""

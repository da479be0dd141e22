"""The results of a run for people and programs: metrics, charts, pages."""

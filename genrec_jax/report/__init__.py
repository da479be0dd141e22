"""What a run tells people and programs: metrics, charts, report pages."""

"""Tuning: what is tuned (tasks), how (search), where it is measured (measure) and what is kept (records)."""

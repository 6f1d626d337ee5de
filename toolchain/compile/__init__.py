"""From a model and tuning records to a bundle for one board."""

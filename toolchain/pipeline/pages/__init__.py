"""Pages about one device: of a deploy or a benchmark, of a comparison, and of a survey.

Each says its verdict first, then numbers, plots, conditions and warnings, and where it comes from.
"""

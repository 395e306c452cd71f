"""Answers beside a study: plans, checks of configurations, logs, data loaders."""

"""Measures a user's data loader, and compares it with the rate that training needs."""

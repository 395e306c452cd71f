"""A data loader of the user's beside what training takes: settings, measurements, the answer."""

"""Which nodes hold which layers of which models. Pure: `place` is the entry, all others serve it."""

"""Which hosts a model fits on: `placement` chooses among what `rank_memory` had computed."""

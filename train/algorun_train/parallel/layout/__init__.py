"""Which rank is where (`grid.Grid`), with the schedule and the sizes of a batch (`layout.Layout`). Pure."""

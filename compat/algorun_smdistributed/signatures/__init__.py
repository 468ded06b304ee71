"""One model called with several signatures (lengths, arguments, batch sizes): stages for each, over the same weights."""

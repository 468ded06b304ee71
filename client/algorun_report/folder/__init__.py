"""Reads a job's folder: one that `algorun fetch` left, one of `algorun simulate`, or a host's own /opt/ml."""

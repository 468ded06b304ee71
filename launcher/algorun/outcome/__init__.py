"""The end of a job on a host: the failure's text, its hint, the closing line."""

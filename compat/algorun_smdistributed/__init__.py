"""The import names of AWS's closed smdistributed libraries, on open parts. Source: AWS's public documentation."""

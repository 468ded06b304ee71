"""The programs of bench/exactly_once.py, which are killed and resumed."""

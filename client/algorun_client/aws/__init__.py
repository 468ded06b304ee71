"""AWS as the client sees it: its calls as protocols (`api`), its answers as typed values, and boto3 behind them.

`local` answers the same calls on this machine.
"""

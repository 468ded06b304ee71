"""What every room of the client uses. It imports no room."""

"""Ways of spreading one model's training over ranks."""

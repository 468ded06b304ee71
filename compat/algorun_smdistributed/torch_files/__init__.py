"""Files in torch's format: complete or absent, and read without running code unless somebody asks for it."""

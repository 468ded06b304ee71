Explained = None

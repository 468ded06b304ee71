"""What has to be asked before a request is complete: AWS, or the folders of this machine. Reads only."""

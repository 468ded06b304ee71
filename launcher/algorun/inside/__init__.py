"""What runs inside or around a rank: the hook in its interpreter, the step counter, the common stop."""

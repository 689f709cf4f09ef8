"""What of a loop nest is static, and chains of operations by static values."""
